from dataclasses import replace
from datetime import timedelta

import pytest

from evenkeel.history.vocabulary import PlanMode, VerdictKind
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.programs.routes import Route
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.measured.calibration import calibrated_correction
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.planning.search.solver import solve
from evenkeel.planning.solution import Action, Solution
from evenkeel.services.scheduler.plans.decision import Choice, DecisionRule, decide, weigh
from evenkeel.services.scheduler.plans.hindsight import Hindsight
from evenkeel.services.scheduler.plans.outlook import FLIP_MEMORY_SECONDS, Outlook
from tests.unit.planning.planning_cases import situation_of
from tests.unit.scheduler.jobs.play import START, Play

HOME = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=16)
RULE = DecisionRule()


def test_a_plan_that_saves_much_for_long_is_applied():
    decision = decide(RULE, solve(situation_of(HOME, speeds={3: 0.5})), forced=False)
    assert decision.choice is Choice.APPLY
    assert decision.gain_seconds > decision.cost_seconds


def test_a_plan_that_saves_next_to_nothing_is_not():
    solution = solve(situation_of(HOME, speeds={3: 0.5}))
    barely = replace(solution, predicted_seconds=0.99 * solution.idle_seconds)
    assert decide(RULE, barely, forced=False).choice is Choice.KEEP


def test_without_a_better_layout_the_job_is_left_alone():
    assert decide(RULE, solve(situation_of(HOME)), forced=False).choice is Choice.KEEP


def test_with_somebody_dead_there_is_no_choice():
    assert decide(RULE, solve(situation_of(HOME, dead=(3,))), forced=True).choice is Choice.APPLY


def test_a_device_that_keeps_flipping_ends_up_being_left_alone():
    solution = solve(situation_of(HOME, speeds={3: 0.5}))
    choices = [decide(RULE, solution, forced=False, num_flips=flips).choice for flips in range(16)]
    assert choices[0] is Choice.APPLY
    assert choices[-1] is Choice.KEEP
    assert choices == sorted(choices)


def test_a_measured_epoch_corrects_every_later_prediction():
    situation = situation_of(HOME)
    predicted = Replay(situation.cost).seconds(HOME, situation.throughputs)
    correction = calibrated_correction(situation.cost, HOME, situation.throughputs, 1.25 * predicted)
    corrected = CostModel(situation.cost.model, situation.cost.workload, correction)
    assert abs(Replay(corrected).seconds(HOME, situation.throughputs) / (1.25 * predicted) - 1.0) < 1e-9


def test_the_full_shape_is_gone_back_to_although_a_few_iterations_cannot_tell_it_from_the_layout_in_force():
    slow = situation_of(HOME, speeds={3: 0.5})
    healthy = situation_of(HOME)
    back = solve(replace(healthy, layout=solve(slow).layout))
    assert back.layout.replicas == HOME.replicas
    alike = replace(back, predicted_seconds=back.idle_seconds)
    assert decide(RULE, alike, forced=False).choice is Choice.APPLY
    assert solve(slow).judged_gain == 0.0


def test_the_gain_must_exceed_the_cost_by_the_safety_factor():
    solution = solve(situation_of(HOME, speeds={3: 0.5}))
    rate = 1.0 - solution.predicted_seconds / solution.idle_seconds
    breaks_even = RULE.safety * solution.price.pause_seconds / rate
    for horizon, choice in ((0.99 * breaks_even, Choice.KEEP), (1.01 * breaks_even, Choice.APPLY)):
        assert decide(RULE, solution, forced=False, horizon_seconds=horizon).choice is choice


def test_the_numbers_and_the_words_of_a_choice():
    found = solve(situation_of(HOME, speeds={3: 0.5}))
    price = replace(found.price, pause_seconds=4.0)
    solution = replace(found, price=price, predicted_seconds=0.8, idle_seconds=1.0, judged_gain=0.0)
    decision = decide(RULE, solution, forced=False, num_flips=3, horizon_seconds=800.0, prediction_factor=1.1)
    assert (decision.choice, decision.horizon_seconds, decision.cost_seconds) == (Choice.APPLY, 100.0, 4.0)
    assert decision.gain_seconds == pytest.approx(12.0)
    assert decision.reason == (
        "The plan pays: it saves 12.0 s in 100 s and costs 4.0 s (horizon halved 3 times: the device flips)."
    )
    kept = decide(RULE, replace(solution, predicted_seconds=0.95), forced=False, horizon_seconds=100.0)
    assert kept.choice is Choice.KEEP
    assert kept.reason == "The plan does not pay: it saves 5.0 s in 100 s and costs 4.0 s."
    barely = decide(DecisionRule(min_gain=0.6), replace(solution, predicted_seconds=0.6), forced=False)
    assert barely.reason == "The plan does not pay: it saves 40.0 % per iteration, less than 60 %."
    assert barely.horizon_seconds == RULE.horizon_seconds


def test_gains_at_the_very_limits():
    found = solve(situation_of(HOME, speeds={3: 0.5}))
    least = replace(found, predicted_seconds=0.5, idle_seconds=1.0, judged_gain=0.0)
    rule = DecisionRule(min_gain=0.5, safety=2.0)
    price = replace(found.price, pause_seconds=5.0)
    even = replace(least, price=price)
    assert decide(rule, even, forced=False, horizon_seconds=20.0).choice is Choice.KEEP, "a gain of twice the cost"
    assert decide(rule, even, forced=False, horizon_seconds=20.5).choice is Choice.APPLY, "the least gain, no less"


def test_what_is_forced_or_changes_nothing_has_its_numbers_too():
    dead = decide(RULE, solve(situation_of(HOME, dead=(3,))), forced=True, horizon_seconds=50.0, num_flips=10_000)
    assert dead.gain_seconds == dead.horizon_seconds == 50.0 / 2.0**60
    assert dead.cost_seconds > 0.0
    assert dead.reason == "The layout in force cannot go on."
    idle = decide(RULE, solve(situation_of(HOME)), forced=False, horizon_seconds=50.0)
    assert (idle.gain_seconds, idle.cost_seconds, idle.horizon_seconds) == (0.0, 0.0, 50.0)
    assert idle.reason == "No layout is faster than the one in force."


def halving(layout: Layout, *, is_over: bool = False) -> Solution:
    """What pulls one lever, or takes back what it had done, and halves an iteration for a pause of a second."""
    found = solve(situation_of(HOME, speeds={3: 0.5}))
    return replace(
        found,
        layout=layout,
        actions=(Action(lever="depths", description="", gain_seconds=0.0, is_over=is_over),),
        idle_seconds=1.0,
        predicted_seconds=0.5,
        price=replace(found.price, pause_seconds=1.0),
    )


ELSEWHERE = uniform_layout(num_blocks=8, tensor=1, pipeline=2, data=4, num_micro_batches=16)
ROUTED = replace(HOME, routes=(Route(micro_batch=0, stage=0, replica=1),))
KNOWN = Hindsight().after(1.0, 1.3, ["depths"]).after(1.0, 1.1, ["layer_split"])


@pytest.mark.parametrize(
    ("layout", "is_over", "factor"),
    [
        (ELSEWHERE, False, KNOWN.factor_of("depths")),
        (ROUTED, False, KNOWN.factor_of("depths")),
        (ELSEWHERE, True, KNOWN.factor),
        (HOME, False, 1.0),
    ],
)
def test_what_plans_fell_short_by_counts_for_the_levers_that_are_pulled_and_not_for_the_way_home(
    layout: Layout, is_over: bool, factor: float
) -> None:
    job = replace(Play().known, hindsight=KNOWN)
    decision = weigh(job, halving(layout, is_over=is_over), PlanMode.BOUNDARY, RULE, START.timestamp())
    assert decision.gain_seconds == pytest.approx((1.0 - factor * 0.5) * decision.horizon_seconds)
    words = "" if layout is HOME else f" {KNOWN.words([] if is_over else ['depths'])}"
    assert decision.reason == f"The plan pays: it saves {decision.gain_seconds:.1f} s in 600 s and costs 1.0 s.{words}"


def test_the_horizon_of_a_plan_is_what_the_job_has_seen_halved_for_each_flip() -> None:
    known, now = Play().known, (START + timedelta(days=100)).timestamp()
    flips = {3: tuple(now - second for second in (FLIP_MEMORY_SECONDS, 4.0, 3.0, 2.0, 1.0))}
    home = replace(known.home, standbys=(8,))
    job = replace(known, layouts={**known.layouts, 0: home}, outlook=Outlook(num_events=99_999, flips=flips))
    seen = job.outlook.horizon_seconds(
        now_unix_seconds=now, prior_seconds=RULE.horizon_seconds, num_devices=9, observed_seconds=100 * 86400.0
    )
    assert seen < 0.5 * RULE.horizon_seconds
    decision = weigh(job, halving(ELSEWHERE), PlanMode.BOUNDARY, RULE, now)
    assert decision.horizon_seconds == pytest.approx(seen / 4.0)


def test_a_recovery_and_whatever_leaves_a_dead_rank_out_are_no_choice() -> None:
    healthy, idle = Play(), solve(situation_of(HOME))
    dead = Play()
    dead.say(VerdictKind.FAIL_STOP, 3)
    for play, mode, choice in (
        (healthy, PlanMode.BOUNDARY, Choice.KEEP),
        (healthy, PlanMode.RECOVER, Choice.APPLY),
        (dead, PlanMode.BOUNDARY, Choice.APPLY),
    ):
        assert weigh(play.known, idle, mode, RULE, START.timestamp()).choice is choice
