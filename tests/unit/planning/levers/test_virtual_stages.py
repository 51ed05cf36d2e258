"""Plans with several stages a rank: for jobs whose engine runs them, where they pay, and their end."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.measured.recent import RecentIteration
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.costs.price import Prices, TransitionCosts
from evenkeel.planning.costs.risks import holds_more, judged_seconds, num_risks
from evenkeel.planning.levers import REGISTRY
from evenkeel.planning.pipelined.pipeline_search import PipelineSearch, _plan
from evenkeel.planning.pipelined.virtual import bare, has_orders
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE, NoPlanError
from evenkeel.services.scheduler.dispatch.restore import uncovered_blocks
from tests.unit.layouts.strategies import ordered_replicas
from tests.unit.layouts.timeline import timeline_of
from tests.unit.planning.planning_cases import situation_of, situations

LEVER = REGISTRY["virtual_stages"]
NAME = "virtual_stages"


def job(*, data: int = 2, pipeline: int = 4, quota: int = 4, interleavable: bool = True, tensor: int = 1) -> Layout:
    home = uniform_layout(num_blocks=18, tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=data * quota)
    return replace(home, interleavable=interleavable)


def interleaved(home: Layout, chunks: int = 2) -> Layout:
    """The same ranks with an even cut into more stages."""
    replicas = []
    for replica in home.replicas:
        cells = [(stage.ranks, stage.shares) for stage in replica.stages]
        num_stages = chunks * len(cells)
        borders = [home.num_blocks * s // num_stages for s in range(num_stages + 1)]
        stages = tuple(
            Stage(first_block=borders[s], stop_block=borders[s + 1], ranks=cells[s % len(cells)][0], shares=shares)
            for s in range(num_stages)
            for shares in [cells[s % len(cells)][1]]
        )
        quota = replica.num_micro_batches
        orders = interleaved_orders(len(cells), chunks, quota)
        replicas.append(Replica(stages=stages, num_micro_batches=quota, orders=orders))
    return replace(home, replicas=tuple(replicas))


def without_capability(situation: Situation) -> Situation:
    return replace(situation, home=replace(situation.home, interleavable=False))


def test_few_micro_batches_on_many_stages_get_several_stages_a_rank() -> None:
    situation = replace(situation_of(job(), speeds={5: 0.6}), device_bytes=1e12)
    solution, plain = solve(situation), solve(without_capability(situation))
    assert NAME in [action.lever for action in solution.actions]
    assert has_orders(solution.layout)
    assert not has_orders(plain.layout)
    assert solution.predicted_seconds < 0.9 * plain.predicted_seconds
    assert solution.bound_seconds < plain.bound_seconds, "the full shape would be faster with them too"
    assert "orders of their own: replica 0 with" in solution.reason


def test_the_search_finds_more_than_turns_do_and_the_same_each_time() -> None:
    situation = replace(situation_of(job(data=1), speeds={2: 0.6}), device_bytes=1e12)
    (replica,) = situation.home.replicas
    turns, searched = interleaved(situation.home).replicas[0], PipelineSearch(situation).best(replica)
    assert situation.ordered_seconds(searched) < 0.95 * situation.ordered_seconds(turns)
    assert situation.ordered_seconds(searched) < 0.8 * situation.seconds(situation.home)
    _plan.cache_clear()
    assert PipelineSearch(situation).best(replica) == searched


def test_where_memory_is_not_known_a_search_holds_no_more_than_the_full_shape_and_is_no_risk() -> None:
    situation = situation_of(job(data=1, quota=8), speeds={2: 0.6})
    searched = PipelineSearch(situation).best(situation.home.replicas[0])
    layout = replace(situation.home, replicas=(searched,))
    assert not holds_more(situation, searched)
    assert num_risks(situation, layout) == 0
    free = PipelineSearch(replace(situation, device_bytes=1e12)).best(situation.home.replicas[0])
    assert holds_more(situation, free)
    assert num_risks(situation, replace(layout, replicas=(free,))) == 1
    assert situation.ordered_seconds(free) < situation.ordered_seconds(searched)


def test_what_is_too_large_for_a_search_stays_as_it_is() -> None:
    situation = situation_of(job(data=1, quota=2000))
    assert PipelineSearch(situation).best(situation.home.replicas[0]) is None


def test_many_micro_batches_leave_nothing_to_win() -> None:
    situation = replace(situation_of(job(quota=150), speeds={5: 0.6}), device_bytes=1e12)
    assert NAME not in [action.lever for action in solve(situation).actions]


def test_transfers_that_take_long_are_weighed_against_it() -> None:
    situation = replace(situation_of(job(), speeds={5: 0.6}), device_bytes=1e12)
    slow = replace(situation.cost, workload=replace(WORKLOAD, transfer_seconds=0.3))
    cheap, dear = (solve(each).layout for each in (situation, replace(situation, cost=slow)))
    assert most_stages(dear) < most_stages(cheap)


def most_stages(layout: Layout) -> int:
    return max(len(replica.stages) for replica in layout.replicas)


def test_where_links_are_slow_nothing_is_proposed_and_what_is_in_force_is_known_to_suffer() -> None:
    home = job()
    link = SlowLink(ranks=(0, 1), factor=1000.0)
    assert not list(LEVER.propose(replace(situation_of(home), links=(link,)), home))
    there = replace(situation_of(home, layout=interleaved(home)), links=(link,))
    assert there.idle_seconds > 1.3 * replace(there, links=()).idle_seconds
    assert not has_orders(solve(there).layout)


def test_memory_that_does_not_hold_the_activations_gets_orders_that_hold_fewer() -> None:
    situation = situation_of(job(quota=8), speeds={5: 0.6})
    blocks = [replace(block, activation_bytes=10_000_000) for block in situation.cost.model.blocks]
    cost = replace(situation.cost, model=replace(situation.cost.model, blocks=tuple(blocks)))
    most = max(replica_peaks(cost.model, situation.home.replicas[0]))
    wide, tight = (solve(replace(situation, cost=cost, device_bytes=part * most)) for part in (3.0, 1.02))
    assert has_orders(wide.layout)
    held = [max(max(replica_peaks(cost.model, r)) for r in each.layout.replicas) / most for each in (wide, tight)]
    assert held[0] > 1.02 >= held[1]
    assert wide.predicted_seconds < tight.predicted_seconds


@settings(max_examples=15, deadline=None)
@given(situation=situations())
def test_the_capability_never_makes_a_plan_slower_and_plans_stay_whole(situation: Situation) -> None:
    able = replace(situation, home=replace(situation.home, interleavable=True))
    try:
        plain = solve(situation)
    except NoPlanError:
        return
    solution = solve(able)
    assert solution.predicted_seconds <= plain.predicted_seconds * 1.05
    judged = judged_seconds(able, solution.layout) if solution.layout.ranks else 0.0
    assert judged <= judged_seconds(able, plain.layout) * (1.0 + TIE)
    assert solution.layout.num_micro_batches == situation.home.num_micro_batches
    assert set(solution.layout.ranks) <= set(situation.throughputs)
    assert not uncovered_blocks(situation.cost.model, solution.layout, solution.layout.ranks)
    assert not has_orders(plain.layout)


@settings(max_examples=12, deadline=None)
@given(data=st.data(), chunks=st.integers(1, 2))
def test_whatever_dies_or_slows_down_there_is_a_plan_from_a_layout_with_several_stages_a_rank(
    data: st.DataObject, chunks: int
) -> None:
    tensor, capable = data.draw(st.integers(1, 2)), data.draw(st.booleans())
    home = job(tensor=tensor, interleavable=capable)
    layout = interleaved(home, chunks)
    dead = tuple(data.draw(st.sets(st.sampled_from(home.ranks), max_size=4)))
    slow = data.draw(st.dictionaries(st.sampled_from(home.ranks), st.floats(0.3, 1.0), max_size=3))
    speeds = {rank: speed for rank, speed in slow.items() if rank not in dead}
    registered = data.draw(st.sampled_from((home, layout)))
    situation = situation_of(registered, layout=layout, dead=dead, speeds=speeds)
    try:
        solution = solve(situation)
    except NoPlanError:
        return
    assert set(solution.layout.ranks) <= set(situation.throughputs)
    assert solution.layout.num_micro_batches == home.num_micro_batches
    assert solution.predicted_seconds > 0.0
    if not dead:
        assert solution.predicted_seconds <= situation.idle_seconds * (1.0 + TIE)


def test_a_job_that_was_registered_with_several_stages_a_rank_goes_back_to_them() -> None:
    home = interleaved(replace(job(), interleavable=False))
    there = situation_of(home, layout=bare(home))
    solution = solve(replace(there, device_bytes=1e12))
    assert solution.layout.replicas == home.replicas
    assert [action.lever for action in solution.actions] == [NAME]
    assert not solve(situation_of(home)).changes


def test_a_plan_that_ends_it_says_so() -> None:
    home = job(interleavable=False)
    assert LEVER.describe(interleaved(home), home) == "every rank has one stage again"
    solution = solve(situation_of(home, layout=interleaved(home), dead=(3,)))
    assert "every rank has one stage again" in solution.reason


def test_hindsight_of_several_stages_is_asked_by_plans_that_bring_them_and_not_by_those_that_end_them() -> None:
    brings = solve(replace(situation_of(job(), speeds={5: 0.6}), device_bytes=1e12))
    home = job(interleavable=False)
    ends = solve(situation_of(home, layout=interleaved(home), dead=(3,)))
    for solution, asked in ((brings, True), (ends, False)):
        assert [action.is_over for action in solution.actions if action.lever == NAME] == [not asked]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_predictions_are_the_longest_path_through_the_programs(data: st.DataObject) -> None:
    replica = data.draw(ordered_replicas(8, [(0,), (1, 2), (3,)]))
    layout = Layout(num_blocks=8, replicas=(replica,))
    speeds = {rank: data.draw(st.floats(0.3, 1.5)) for rank in layout.ranks}
    situation = situation_of(replace(layout, interleavable=True), speeds=speeds)
    parts = situation.parts(replica.stages, "zb-h1")

    def seconds_of(_: int, s: int, instruction: object) -> float:
        forward, of_input, of_weights = parts[s]
        by_op = {Op.FORWARD: forward, Op.BACKWARD: of_input + of_weights, Op.BACKWARD_INPUT: of_input}
        return by_op.get(instruction.op, of_weights)

    played = timeline_of(layout, seconds_of, WORKLOAD.transfer_seconds).iteration_seconds
    expected = pytest.approx(played + WORKLOAD.fixed_seconds)
    assert situation.seconds(layout) == expected
    assert Replay(situation.cost).seconds(layout, speeds) == expected
    tokens, squares = (
        (round(each),) * replica.num_micro_batches for each in (WORKLOAD.tokens, WORKLOAD.sum_of_squares)
    )
    recent = (RecentIteration(tokens=tokens, sums_of_squares=squares, wall_seconds=1.0),)
    known = replace(situation.cost, workload=replace(WORKLOAD, recent=recent))
    assert Replay(known, None).seconds(layout, speeds) == expected


def test_interleaving_holds_more_activations_than_the_same_ranks_without() -> None:
    home, model = job(data=1, quota=8), gpt(16)
    model = replace(
        model,
        blocks=tuple(replace(b, activation_bytes=1_000, parameter_bytes=0, optimizer_bytes=0) for b in model.blocks),
    )
    first, last = (replica_peaks(model, layout.replicas[0]) for layout in (home, interleaved(home)))
    assert len(first) == len(last) == 4
    # Rank 0 does (4 - 1) * 2 + 4 forwards and one more before a backward: 7 of its first two blocks, 4 of the others.
    assert last[0] == pytest.approx(1_000 * (7 * 2 + 4 * 2))
    assert first[0] == pytest.approx(1_000 * 4 * 5)


def test_a_rank_that_gets_another_stage_fetches_that_and_no_more() -> None:
    home, costs = job(data=1, pipeline=2), TransitionCosts(group_seconds=0.5, bytes_per_second=1e6)
    there = interleaved(home)
    model = gpt(16)
    sizes = [block.parameter_bytes + block.optimizer_bytes for block in model.blocks]
    stages = there.replicas[0].stages
    gets = {0: set(range(stages[2].first_block, stages[2].stop_block)) - set(range(9))}
    gets[1] = set(range(stages[1].first_block, stages[1].stop_block)) - set(range(9, 18))
    expected = {rank: sum(sizes[block] for block in blocks) for rank, blocks in gets.items()}
    price = Prices(model, home, frozenset(home.ranks), costs).of(there)
    assert price.moved_bytes == sum(expected.values())
    assert price.pause_seconds == pytest.approx(0.5 + max(expected.values()) / 1e6)
    assert Prices(model, there, frozenset(home.ranks), costs).of(there).pause_seconds == 0.0


def test_where_too_few_ranks_are_left_for_the_activations_of_the_full_shape_the_job_gets_a_plan_all_the_same() -> None:
    home = uniform_layout(num_blocks=10, tensor=1, pipeline=3, data=1, num_micro_batches=1)
    solution = solve(situation_of(replace(home, interleavable=True), dead=(2,)))
    assert solution.changes
    assert solution.layout.ranks == (0, 1)
