from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.copy_placement import copy_groups, place_copies
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.state.extents import assign_writers, extents_of


def layout(tensor: int, pipeline: int, data: int) -> Layout:
    return uniform_layout(num_blocks=5, tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=4)


@given(data=st.data(), ranks_per_node=st.integers(1, 12))
def test_whatever_would_be_gone_with_a_rank_or_node_is_kept_by_somebody_else(
    data: st.DataObject, ranks_per_node: int, any_layout: st.SearchStrategy[Layout], small_config: TrainingConfig
) -> None:
    chosen, specs = data.draw(any_layout), parameter_specs(small_config.model)
    nodes = {rank: f"node-{rank // ranks_per_node}" for rank in chosen.ranks}
    placements = place_copies(specs, chosen, nodes.__getitem__)
    keeper_of = {place.owner: place.keeper for place in placements}
    assert len(keeper_of) == len(placements), "an owner has one keeper"
    assert all(owner != keeper for owner, keeper in keeper_of.items())
    by_node = len(set(nodes.values())) > 1
    for failed in chosen.ranks:
        gone = {rank for rank in chosen.ranks if rank == failed or (by_node and nodes[rank] == nodes[failed])}
        for _, holders in extents_of(specs, chosen):
            kept = any(not {rank, keeper_of.get(rank, rank)} <= gone for rank in holders)
            assert kept or len(chosen.ranks) == 1


@given(data=st.data())
def test_with_several_replicas_on_one_node_nobody_is_exposed(
    data: st.DataObject, any_layout: st.SearchStrategy[Layout], small_config: TrainingConfig
) -> None:
    chosen = data.draw(any_layout.filter(lambda one: len(one.replicas) > 1))
    assert place_copies(parameter_specs(small_config.model), chosen) == ()


def test_keepers_are_on_another_node_and_share_the_work(small_config: TrainingConfig) -> None:
    specs = parameter_specs(small_config.model)
    placements = place_copies(specs, layout(2, 2, 1), lambda rank: f"node-{rank // 2}")
    assert [(place.owner, place.keeper) for place in placements] == [(0, 2), (1, 3), (2, 0), (3, 1)]
    assert [group.ranks for group in copy_groups(placements)] == [(0, 2), (1, 3), (2, 0), (3, 1)]


def test_without_nodes_keepers_stand_far_away(small_config: TrainingConfig) -> None:
    placements = place_copies(parameter_specs(small_config.model), layout(2, 4, 1))
    assert [(place.owner, place.keeper) for place in placements][:3] == [(0, 4), (1, 5), (2, 6)]


def test_replicas_on_two_nodes_need_no_copies(small_config: TrainingConfig) -> None:
    specs = parameter_specs(small_config.model)
    assert place_copies(specs, layout(2, 2, 2), lambda rank: f"node-{rank // 4}") == ()
    assert place_copies(specs, layout(2, 2, 2), lambda rank: "left" if rank % 4 == 3 else "right") != ()


@given(data=st.data())
def test_every_element_is_written_once_by_one_of_its_holders(
    data: st.DataObject, any_layout: st.SearchStrategy[Layout], small_config: TrainingConfig
) -> None:
    chosen, specs = data.draw(any_layout), parameter_specs(small_config.model)
    holders = dict(extents_of(specs, chosen))
    written = [(extent, rank) for rank, extents in assign_writers(specs, chosen).items() for extent in extents]
    assert sorted(str(extent) for extent, _ in written) == sorted(map(str, holders))
    assert all(rank in holders[extent] for extent, rank in written)
    for spec in specs:
        assert sum(e.stop - e.start for e, _ in written if e.name == spec.name) == spec.cut_size
