from dataclasses import replace

from evenkeel.layouts.layout import uniform_layout
from evenkeel.planning.costs.calibration import calibrated_correction
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.search.solver import solve
from evenkeel.services.scheduler.plans.decision import Choice, DecisionRule, decide
from tests.unit.scheduler.planning_cases import situation_of

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
    predicted = situation.cost.iteration_seconds(HOME, situation.throughputs)
    correction = calibrated_correction(situation.cost, HOME, situation.throughputs, 1.25 * predicted)
    corrected = CostModel(situation.cost.model, situation.cost.workload, correction)
    assert abs(corrected.iteration_seconds(HOME, situation.throughputs) / (1.25 * predicted) - 1.0) < 1e-9


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
