"""The copies rule, by all of its failures: every unit and every pair of units of many shapes."""

from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.copies import losses_not_survived, place_copies
from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec

BLOCK = BlockCost(
    forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0, parameter_bytes=100, optimizer_bytes=200
)
MODEL = ModelSpec(blocks=(BLOCK,) * 8)


def on_nodes(layout: Layout, devices_per_node: int) -> dict[int, str]:
    return {rank: f"n{place // devices_per_node}" for place, rank in enumerate(sorted(layout.ranks))}


def survives(layout: Layout, placements, gone: set[int]) -> bool:
    """By hand: whether the others hold every part of every block, in eighths of it, or a copy of it."""
    left = {rank for rank in layout.ranks if rank not in gone}
    left |= {one.owner for one in placements if one.keeper in left}
    for block in range(layout.num_blocks):
        held: set[int] = set()
        for replica in layout.replicas:
            stage = next(s for s in replica.stages if s.first_block <= block < s.stop_block)
            width = 8 // sum(stage.shares)
            for t, rank in enumerate(stage.ranks):
                if rank in left:
                    first = sum(stage.shares[:t]) * width
                    held.update(range(first, first + stage.shares[t] * width))
        if held != set(range(8)):
            return False
    return True


@pytest.mark.parametrize(
    ("data", "pipeline", "devices_per_node", "kept_per_rank"),
    [
        (2, 4, 8, 0.5),
        (2, 4, 4, 1.0),
        (2, 4, 2, 0.5),
        (4, 2, 4, 0.0),
        (4, 2, 2, None),
        (3, 4, 4, 0.0),
        (4, 4, 4, 0.0),
        (8, 1, 2, 0.0),
        (2, 8, 8, None),
        (2, 3, 3, None),
        (1, 8, 8, 2.0),
        (1, 8, 4, 3.0),
        (1, 8, 2, 2.0),
        (1, 6, 2, None),
        (1, 4, 1, None),
        (1, 3, 1, None),
    ],
)
def test_nothing_is_lost_with_any_unit_or_pair_that_is_not_everybody(
    data: int, pipeline: int, devices_per_node: int, kept_per_rank: float | None
) -> None:
    layout = uniform_layout(num_blocks=8, tensor=1, pipeline=pipeline, data=data, num_micro_batches=8)
    nodes = on_nodes(layout, devices_per_node)
    placements = place_copies(MODEL, layout, nodes)
    names = set(nodes.values()) if len(set(nodes.values())) > 1 else set()
    units = [{rank} for rank in layout.ranks] + [{r for r in nodes if nodes[r] == name} for name in names]
    for gone in (*units, *(one | other for one, other in combinations(units, 2))):
        assert survives(layout, placements, gone) or gone == set(layout.ranks), gone
    if kept_per_rank is not None:
        assert len(placements) / len(layout.ranks) == kept_per_rank
    assert losses_not_survived(layout, nodes, placements) == ()


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Replicas that differ in stages and in unequal shards."""
    rank, replicas = 0, []
    for _ in range(draw(st.integers(1, 3))):
        borders = [0, *sorted(draw(st.sets(st.integers(1, 3), max_size=2))), 4]
        stages = []
        for first, stop in pairwise(borders):
            shares = draw(st.sampled_from([(1,), (1, 1), (3, 1), (1, 2, 1), (2, 2), (1, 3)]))
            ranks = tuple(range(rank, rank + len(shares)))
            stages.append(Stage(first_block=first, stop_block=stop, ranks=ranks, shares=shares))
            rank += len(shares)
        replicas.append(Replica(stages=tuple(stages), num_micro_batches=2))
    return Layout(num_blocks=4, replicas=tuple(replicas))


@given(layout=layouts(), devices_per_node=st.integers(1, 6), budget=st.sampled_from([0.0, 900.0, float("inf")]))
def test_what_is_told_is_what_cannot_be_survived(layout: Layout, devices_per_node: int, budget: float) -> None:
    nodes = on_nodes(layout, devices_per_node)
    placements = place_copies(MODEL, layout, nodes, budget)
    told = losses_not_survived(layout, nodes, placements)
    names = set(nodes.values()) if len(set(nodes.values())) > 1 else set()
    units = {f"rank {rank}": frozenset({rank}) for rank in layout.ranks}
    units |= {name: frozenset(rank for rank in nodes if nodes[rank] == name) for name in names}
    different = set(units.values())
    everybody = frozenset(layout.ranks)
    alone = {ranks for ranks in different - {everybody} if not survives(layout, placements, set(ranks))}
    assert {units[one[0]] for one in told if len(one) == 1} == alone
    pairs = {
        frozenset({one, other})
        for one, other in combinations(different - alone, 2)
        if one | other != everybody and not survives(layout, placements, set(one | other))
    }
    assert {frozenset(units[each] for each in one) for one in told if len(one) == 2} <= pairs
    covering = [frozenset().union(*(units[each] for each in one)) for one in told]
    assert all(any(ranks <= one | other for ranks in covering) for one, other in pairs)
    sizes = [(len(one), len(ranks)) for one, ranks in zip(told, covering, strict=True)]
    assert sizes == sorted(sizes)
    if budget == float("inf"):
        assert told == (), "it could have been covered"


def test_a_copy_is_of_a_holder_on_the_keeper_s_node_where_there_is_one() -> None:
    layout = uniform_layout(num_blocks=8, tensor=1, pipeline=4, data=2, num_micro_batches=8)
    nodes = on_nodes(layout, 4)
    placements = place_copies(MODEL, layout, nodes)
    assert {nodes[one.keeper] for one in placements} == {"n0", "n1"}
    assert all(nodes[one.owner] == nodes[one.keeper] for one in placements)


@pytest.mark.parametrize("devices_per_node", [1, 3])
def test_the_holders_of_a_slice_take_turns_in_sending_it(devices_per_node: int) -> None:
    stages = [Stage(first_block=0, stop_block=8, ranks=ranks, shares=(1,) * len(ranks)) for ranks in ((0,), (1, 2))]
    layout = Layout(num_blocks=8, replicas=tuple(Replica(stages=(one,), num_micro_batches=8) for one in stages))
    placements = place_copies(MODEL, layout, on_nodes(layout, devices_per_node))
    assert [(one.owner, one.keeper) for one in placements] == [(0, 2), (2, 1)]


def test_a_budget_is_kept_and_spent_on_single_losses_first() -> None:
    layout = uniform_layout(num_blocks=8, tensor=1, pipeline=8, data=1, num_micro_batches=8)
    nodes = on_nodes(layout, 2)
    placements = place_copies(MODEL, layout, nodes, budget_bytes=300.0)
    assert [(one.owner, one.keeper) for one in placements] == [(r, (r + 2) % 8) for r in range(8)]
    assert all(len(one) == 2 for one in losses_not_survived(layout, nodes, placements))
    of_three = place_copies(MODEL, layout, on_nodes(layout, 4), budget_bytes=600.0)
    assert Counter(one.keeper for one in of_three) == dict.fromkeys(range(8), 2)


@pytest.mark.parametrize(("budget", "num_copies"), [(599.0, 0), (600.0, 4)])
def test_a_copy_weighs_all_blocks_that_its_owner_holds(budget: float, num_copies: int) -> None:
    layout = uniform_layout(num_blocks=8, tensor=1, pipeline=4, data=1, num_micro_batches=8)
    nodes = on_nodes(layout, 1)
    placements = place_copies(MODEL, layout, nodes, budget)
    assert len(placements) == num_copies
    alone = [one for one in losses_not_survived(layout, nodes, placements) if len(one) == 1]
    assert alone == [("n0",), ("n1",), ("n2",), ("n3",)][num_copies:]
