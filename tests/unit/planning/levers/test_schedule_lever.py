"""Plans with another pipeline schedule: for jobs that may have one, where it pays, where it fits."""

from dataclasses import replace

import pytest

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.programs.instructions import Op
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.costs.risks import judged_seconds, num_risks
from evenkeel.planning.levers.balance.tuning import LAYER_SPLIT, Tuner
from evenkeel.planning.repair import repaired
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE
from evenkeel.services.scheduler.plans.decision import Choice, DecisionRule, decide
from tests.unit.layouts.timeline import timeline_of
from tests.unit.planning.planning_cases import situation_of

BOTH = ("1f1b", "zb-h1")
AMPLE = 1e12


def job(num_micro_batches: int = 8, pipeline: int = 4, **changes: object) -> Layout:
    bare = uniform_layout(
        num_blocks=10, tensor=1, pipeline=pipeline, data=2, num_micro_batches=num_micro_batches, schedule="1f1b"
    )
    return replace(bare, **{"schedules": BOTH, **changes})  # type: ignore[arg-type]


def test_a_job_whose_engine_runs_only_one_schedule_is_offered_no_other() -> None:
    solution = solve(situation_of(job(schedules=()), speeds={1: 0.5}, device_bytes=AMPLE))
    assert solution.layout.schedule == "1f1b"
    assert not any("schedule" in other.name for other in solution.alternatives)


def test_a_slow_stage_costs_less_under_a_split_backward_and_the_plan_says_so() -> None:
    alone = solve(situation_of(job(schedules=()), speeds={1: 0.5}, device_bytes=AMPLE))
    solution = solve(situation_of(job(), speeds={1: 0.5}, device_bytes=AMPLE))
    assert solution.layout.schedule == "zb-h1"
    assert solution.predicted_seconds < 0.95 * alone.predicted_seconds
    action = next(action for action in solution.actions if action.lever == "schedule")
    assert action.description == "schedule zb-h1 (was 1f1b)"
    assert action.gain_seconds > 0.0
    assert "schedule zb-h1 (was 1f1b)" in solution.reason
    assert solution.bound_seconds < alone.bound_seconds, "no plan may come out above a bound without the schedule"


def test_a_plan_after_a_death_keeps_the_schedule_that_is_in_force_or_finds_a_better_one() -> None:
    in_force = job(schedule="zb-h1", schedules=())
    situation = replace(
        situation_of(job(), dead=(5,), device_bytes=AMPLE), layout=in_force, holders=frozenset({0, 1, 2, 3, 4, 6, 7})
    )
    solution = solve(situation)
    assert solution.layout.schedule == "zb-h1"
    assert 5 not in solution.layout.ranks


def test_the_memory_of_a_split_backward_counts() -> None:
    home = job()
    situation = situation_of(home, speeds={1: 0.5})
    blocks = tuple(replace(block, activation_bytes=3_000_000) for block in situation.cost.model.blocks)
    model = replace(situation.cost.model, blocks=blocks)
    whole, split = (max(replica_peaks(model, home.replicas[0], schedule=name)) for name in BOTH)
    last = [replica_peaks(model, home.replicas[0], schedule=name)[-1] for name in BOTH]
    assert whole <= split
    assert last[1] > 2 * last[0], "the last stage keeps four micro-batches instead of one"
    cost = replace(situation.cost, model=model)
    roomy = solve(replace(situation, cost=cost, device_bytes=2.0 * split))
    assert roomy.layout.schedule == "zb-h1"
    uneven = Layout(num_blocks=10, replicas=home.replicas, schedules=BOTH)
    tight = replace(situation, cost=cost, layout=uneven, device_bytes=whole * 1.0001)
    for layout in (solve(tight).layout, solve(replace(tight, throughputs=dict.fromkeys(home.ranks, 1.0))).layout):
        assert tight.excess_bytes(layout) == 0.0


def test_where_memory_is_not_known_a_split_backward_must_bring_more_than_its_risk() -> None:
    many = situation_of(job(num_micro_batches=128), speeds={1: 0.9})
    split = replace(many.layout, schedule="zb-h1")
    assert num_risks(many, split) == num_risks(many, many.layout) + 1
    assert 0.96 * many.seconds(many.layout) < many.seconds(split) < many.seconds(many.layout)
    assert solve(many).layout.schedule == "1f1b"
    few = situation_of(job(num_micro_batches=8), speeds={1: 0.9})
    assert solve(few).layout.schedule == "zb-h1"


def test_a_small_gain_is_no_reason_for_a_plan() -> None:
    situation = situation_of(job(num_micro_batches=512, pipeline=2), device_bytes=AMPLE)
    split = replace(situation.layout, schedule="zb-h1")
    assert situation.seconds(split) < situation.seconds(situation.layout)
    solution = solve(situation)
    decision = decide(DecisionRule(), solution, forced=False)
    assert decision.choice is Choice.KEEP


def test_a_change_of_schedule_moves_nothing_and_is_paid_with_a_pause() -> None:
    situation = situation_of(job())
    price = situation.price(replace(situation.layout, schedule="zb-h1"))
    assert price.moved_bytes == 0
    assert price.pause_seconds == situation.transition.group_seconds


@pytest.mark.parametrize("dead", [(), (2,)])
def test_planning_again_under_the_new_schedule_changes_nothing(dead: tuple[int, ...]) -> None:
    situation = situation_of(job(), speeds={1: 0.6}, dead=dead, device_bytes=AMPLE)
    first = solve(situation)
    again = solve(replace(situation, layout=first.layout, holders=frozenset(first.layout.ranks)))
    assert not again.changes


def test_the_prediction_is_the_longest_path_with_the_cost_of_each_part() -> None:
    situation = situation_of(job(schedule="zb-h1"), speeds={1: 0.5, 6: 0.8})
    cost, layout = situation.cost, situation.layout
    places = {Op.FORWARD: 0, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2}
    parts = [[cost.parts(s, situation.throughputs, "zb-h1") for s in replica.stages] for replica in layout.replicas]
    for replica, row in zip(layout.replicas, parts, strict=True):
        for stage, seconds in zip(replica.stages, row, strict=True):
            forward, backward, _ = cost.parts(stage, situation.throughputs, "1f1b")
            assert seconds[0] == forward
            assert seconds[1] + seconds[2] == pytest.approx(backward)
            assert seconds[1] > seconds[2] > 0.0, "attention has no weights"
    timeline = timeline_of(
        layout, lambda d, s, one: parts[d][s][places[one.op]], transfer_seconds=cost.workload.transfer_seconds
    )
    expected = cost.total(timeline.iteration_seconds)
    assert Replay(cost).seconds(layout, situation.throughputs) == pytest.approx(expected)
    assert situation.seconds(layout) == pytest.approx(expected)


def test_a_situation_without_micro_batches_for_a_replica_takes_no_time_there() -> None:
    situation: Situation = situation_of(job(schedule="zb-h1"))
    assert situation.makespan(situation.layout.replicas[0].stages, 0, "zb-h1") == 0.0


@pytest.mark.parametrize("dead", [(0, 4, 10, 11), (0, 1, 4, 11)])
def test_a_schedule_is_not_given_up_because_another_one_s_splits_suit_it_badly(dead: tuple[int, ...]) -> None:
    home = replace(
        uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=3, num_micro_batches=6), schedules=("1f1b", "zb-h1")
    )
    situation = situation_of(home, dead=dead, speeds={5: 0.6345})
    solution = solve(situation)
    base = repaired(situation.layout, situation.throughputs)
    assert base is not None
    alone = judged_seconds(situation, Tuner(situation).tuned(base, (LAYER_SPLIT,)))
    assert judged_seconds(situation, solution.layout) <= alone * (1.0 + TIE)
    assert "schedule" not in {action.lever for action in solution.actions}
