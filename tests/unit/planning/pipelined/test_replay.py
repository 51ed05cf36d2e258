"""Recent iterations replayed: the cost model's own numbers where micro-batches are alike, and never less where not."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.sizes.mix import even_mix
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.measured.calibration import (
    calibrated_correction,
    for_equal_work,
    pooled,
    with_transfers,
)
from evenkeel.planning.costs.measured.recent import RecentIteration
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.planning.situation import Situation
from tests.unit.layouts.timeline import timeline_of

MODEL = gpt(6)
TOKENS, SQUARES = 1000, 200_000
PLAIN = Workload(
    seconds_per_flop=1e-12,
    tokens=TOKENS,
    sum_of_squares=SQUARES,
    fixed_seconds=0.01,
    transfer_seconds=0.002,
    exchange_seconds=0.0003,
)


def in_turns(replica: Replica, chunks: int) -> Replica:
    """Several stages a rank, interleaved."""
    cells = len(replica.stages)
    parts = replica.stop_block // (cells * chunks)
    stages = [
        replace(replica.stages[s % cells], first_block=s * parts, stop_block=(s + 1) * parts)
        for s in range(cells * chunks)
    ]
    quota = replica.num_micro_batches
    return Replica(stages=tuple(stages), num_micro_batches=quota, orders=interleaved_orders(cells, chunks, quota))


HOME = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=8)
UNEVEN = Layout(
    num_blocks=8,
    replicas=(
        HOME.replicas[0],
        Replica(
            stages=(
                Stage(first_block=0, stop_block=5, ranks=(4, 5), shares=(2, 1)),
                Stage(first_block=5, stop_block=8, ranks=(6,), shares=(1,)),
            ),
            num_micro_batches=4,
        ),
    ),
)
SEVERAL = replace(HOME, replicas=tuple(in_turns(replica, 2) for replica in HOME.replicas))
SPEEDS = dict.fromkeys(range(8), 1.0) | {5: 0.5}


def iteration(tokens: list[int], *, wall_seconds: float = 1.0) -> RecentIteration:
    return RecentIteration(
        wall_seconds=wall_seconds,
        tokens=tuple(tokens),
        sums_of_squares=tuple(one * SQUARES // TOKENS for one in tokens),
    )


def sized(tokens: float) -> Workload:
    """The workload with micro-batches of another size: what collectives carry goes with tokens."""
    scale = tokens / TOKENS
    exchange_seconds = PLAIN.exchange_seconds * scale
    return replace(PLAIN, tokens=tokens, sum_of_squares=SQUARES * scale, exchange_seconds=exchange_seconds)


def having_run(*iterations: RecentIteration) -> CostModel:
    return CostModel(MODEL, replace(PLAIN, recent=iterations))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("layout", [HOME, UNEVEN])
def test_micro_batches_that_are_alike_take_what_the_search_predicts(layout: Layout, schedule: str) -> None:
    layout = replace(layout, schedule=schedule)
    situation = Situation(
        layout=layout, home=HOME, throughputs=SPEEDS, cost=CostModel(MODEL, PLAIN), holders=frozenset(layout.ranks)
    )
    for cost in (having_run(iteration([TOKENS] * 8), iteration([TOKENS] * 8)), situation.cost):
        assert Replay(cost).seconds(layout, SPEEDS) == pytest.approx(situation.seconds(layout))


@given(
    tokens=st.lists(st.integers(100, 3000), min_size=8, max_size=8),
    layout=st.sampled_from([HOME, UNEVEN]),
)
def test_unequal_micro_batches_in_every_order_take_no_less_than_equal_ones(tokens: list[int], layout: Layout) -> None:
    cost = having_run(*[iteration(tokens[start:] + tokens[:start]) for start in range(8)])
    mean = float(np.mean(tokens))
    alike = CostModel(MODEL, sized(mean))
    assert Replay(cost).seconds(layout, SPEEDS) >= Replay(alike).seconds(layout, SPEEDS) * (1.0 - 1e-9)


@pytest.mark.parametrize("layout", [HOME, UNEVEN])
def test_collectives_of_large_micro_batches_take_longer(layout: Layout) -> None:
    cost = having_run(iteration([2 * TOKENS] * 8))
    larger = CostModel(MODEL, sized(2 * TOKENS))
    assert Replay(cost).seconds(layout, SPEEDS) == pytest.approx(Replay(larger).seconds(layout, SPEEDS))


def test_each_replica_gets_its_own_micro_batches() -> None:
    light, heavy = [TOKENS] * 4, [3 * TOKENS] * 4
    first, second = (having_run(iteration(tokens)) for tokens in (heavy + light, light + heavy))
    slow_second = SPEEDS | dict.fromkeys((4, 5, 6, 7), 0.5)
    assert Replay(first).seconds(HOME, slow_second) < 0.8 * Replay(second).seconds(HOME, slow_second)


def test_a_mix_makes_the_micro_batches_of_its_groups_smaller_or_larger() -> None:
    even = even_mix((4, 4), token_cost=1.0, square_cost=0.0)
    lighter = replace(even, weights=(3, 1))
    cost = having_run(iteration([TOKENS] * 8))
    replay = Replay(cost, even)
    slow_second = SPEEDS | dict.fromkeys((4, 5, 6, 7), 0.4)
    assert replay.seconds(replace(HOME, mix=lighter), slow_second) < replay.seconds(HOME, slow_second)


def test_a_routed_stage_is_played_where_it_runs() -> None:
    cost = having_run(iteration([TOKENS] * 8))
    layout = replace(HOME, routes=(Route(micro_batch=6, stage=1, replica=0), Route(micro_batch=7, stage=1, replica=0)))

    def seconds_of(replica: int, stage: int, instruction: Instruction) -> float:
        forward, backward, _ = cost.parts(layout.replicas[replica].stages[stage], SPEEDS, "1f1b")
        return forward if instruction.op is Op.FORWARD else backward

    played = timeline_of(layout, seconds_of, PLAIN.transfer_seconds).iteration_seconds
    assert Replay(cost).seconds(layout, SPEEDS) == pytest.approx(cost.total(played))


def test_another_number_of_micro_batches_is_refused() -> None:
    replay = Replay(having_run(iteration([TOKENS] * 8)))
    other = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=4)
    with pytest.raises(ValueError, match="8 micro-batches, the layout has 4"):
        replay.seconds(other, SPEEDS)


def test_recent_iterations_of_different_sizes_are_no_workload() -> None:
    with pytest.raises(ValueError, match=r"\[1, 2\] micro-batches"):
        replace(PLAIN, recent=(iteration([5]), iteration([5, 5])))


def test_a_heavy_iteration_corrects_nothing() -> None:
    heavy, light = [2 * TOKENS, *[TOKENS] * 7], [TOKENS] * 8
    for tokens in (heavy, light):
        took = 1.3 * Replay(having_run(iteration(tokens))).seconds(HOME, SPEEDS)
        cost = having_run(*[iteration(tokens, wall_seconds=took)] * 16)
        for _ in range(20):
            cost = replace(cost, correction=calibrated_correction(cost, HOME, SPEEDS, measured=99.0))
        assert cost.correction == pytest.approx(1.3)


@given(known=st.floats(0.6, 2.0), actual=st.floats(0.6, 2.0), few=st.integers(1, 16))
def test_what_a_few_iterations_say_of_the_scale_is_mixed_with_what_was_known_the_more_the_more_they_are(
    known: float, actual: float, few: int
) -> None:
    took = actual * Replay(having_run(iteration([TOKENS] * 8))).seconds(HOME, SPEEDS)
    found = [
        calibrated_correction(
            replace(having_run(*[iteration([TOKENS] * 8, wall_seconds=took)] * count), correction=known),
            HOME,
            SPEEDS,
            measured=99.0,
        )
        for count in (few, few + 1)
    ]
    distances = [abs(correction - actual) for correction in (known, *found)]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(distances))
    assert all(min(known, actual) - 1e-9 <= correction <= max(known, actual) + 1e-9 for correction in found)


@pytest.mark.parametrize("layout", [HOME, SEVERAL], ids=["one stage a rank", "several"])
@pytest.mark.parametrize("actual_seconds", [0.0, 0.002, 0.003])
def test_transfers_take_what_neither_compute_nor_stalls_explain(actual_seconds: float, layout: Layout) -> None:
    tokens = [TOKENS, 3 * TOKENS, *[TOKENS] * 6]
    actual = CostModel(MODEL, replace(PLAIN, transfer_seconds=actual_seconds, recent=(iteration(tokens),)))
    took = Replay(actual).seconds(layout, SPEEDS)
    found = replace(PLAIN, transfer_seconds=0.02, recent=(iteration(tokens, wall_seconds=took),))
    told = with_transfers(CostModel(MODEL, found), layout, SPEEDS)
    assert told.transfer_seconds == pytest.approx(actual_seconds, abs=2e-4)
    assert told.transfers_in_line >= 2


def test_transfers_are_not_believed_to_take_more_than_half_of_an_iteration() -> None:
    found = replace(PLAIN, recent=(iteration([TOKENS] * 8, wall_seconds=99.0),))
    told = with_transfers(CostModel(MODEL, found), HOME, SPEEDS)
    assert told.transfer_seconds * told.transfers_in_line == pytest.approx(99.0 / 2, rel=1e-2)


def test_where_nothing_is_sent_between_stages_transfers_stay_what_they_were() -> None:
    found = replace(PLAIN, recent=(iteration([TOKENS] * 8, wall_seconds=99.0),))
    alone = uniform_layout(num_blocks=8, tensor=4, pipeline=1, data=2, num_micro_batches=8)
    assert with_transfers(CostModel(MODEL, found), alone, SPEEDS) == found


def test_what_is_of_the_machines_is_pooled_over_layouts_and_what_is_of_the_work_is_not() -> None:
    known = replace(PLAIN, exchange_seconds=0.0, recent=(iteration([TOKENS] * 8),) * 16)
    fresh = replace(PLAIN, tokens=5, exchange_seconds=0.003, recent=(iteration([TOKENS] * 8),) * 4)
    both = pooled(known, fresh)
    assert both.exchange_seconds == pytest.approx(0.001)
    assert (both.tokens, both.recent) == (5, fresh.recent)
    assert pooled(None, fresh) is fresh


@pytest.mark.parametrize(("known", "fresh", "expected"), [(4, 4, 0.02), (4, 8, 0.035), (4, 0, 0.01), (0, 4, 0.06)])
def test_transfers_are_best_told_by_iterations_in_which_many_follow_one_another(
    known: float, fresh: float, expected: float
) -> None:
    recent = (iteration([TOKENS] * 8),)
    both = pooled(
        replace(PLAIN, transfer_seconds=0.01, transfers_in_line=known, recent=recent),
        replace(PLAIN, transfer_seconds=0.06, transfers_in_line=fresh, recent=recent * 2),
    )
    assert both.transfer_seconds == pytest.approx(expected)
    assert min(known, fresh) <= both.transfers_in_line <= max(known, fresh)


def test_a_plan_whose_iterations_were_heavier_is_measured_for_the_work_that_it_was_planned_for() -> None:
    planned_for = having_run(iteration([TOKENS] * 8)).workload
    predicted = Replay(CostModel(MODEL, planned_for)).seconds(UNEVEN, SPEEDS)
    heavy = [2 * TOKENS] * 8
    took = 1.1 * Replay(having_run(iteration(heavy))).seconds(UNEVEN, SPEEDS)
    ran = having_run(iteration(heavy, wall_seconds=took))
    assert for_equal_work(ran, UNEVEN, SPEEDS, planned_for, measured=99.0) == pytest.approx(1.1 * predicted)
    assert for_equal_work(ran, UNEVEN, SPEEDS, None, measured=99.0) == 99.0
