from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.copies import place_copies
from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.disk_copies import assign_writers
from evenkeel.trainer_sdk.elastic.model.model import model_spec, parameter_specs
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap


def holders_of(config: TrainingConfig, layout: Layout) -> dict[tuple[str, int, int], tuple[int, ...]]:
    """The ranks that hold each stretch of each parameter."""
    specs = parameter_specs(config.model)
    ownership = OwnershipMap(specs, layout)
    return {(spec.name, each.start, each.stop): each.ranks for spec in specs for each in ownership.stretches(spec.name)}


@given(data=st.data(), ranks_per_node=st.integers(1, 12))
def test_no_part_of_any_parameter_is_gone_with_two_ranks_or_nodes(
    data: st.DataObject, ranks_per_node: int, any_layout: st.SearchStrategy[Layout], small_config: TrainingConfig
) -> None:
    chosen = data.draw(any_layout)
    nodes = {rank: f"node-{rank // ranks_per_node}" for rank in chosen.ranks}
    placements = place_copies(model_spec(small_config), chosen, nodes)
    whole = set(nodes.values()) if len(set(nodes.values())) > 1 else set()
    units = [{rank} for rank in chosen.ranks] + [{rank for rank in nodes if nodes[rank] == name} for name in whole]
    for gone in (*units, *(one | other for one, other in combinations(units, 2))):
        if gone == set(chosen.ranks):
            continue
        left = set(chosen.ranks) - gone
        left |= {place.owner for place in placements if place.keeper in left}
        assert all(not left.isdisjoint(holders) for holders in holders_of(small_config, chosen).values())


@given(data=st.data())
def test_every_element_is_written_once_by_one_of_its_holders(
    data: st.DataObject, any_layout: st.SearchStrategy[Layout], small_config: TrainingConfig
) -> None:
    chosen, specs = data.draw(any_layout), parameter_specs(small_config.model)
    holders, assigned = holders_of(small_config, chosen), assign_writers(OwnershipMap(specs, chosen))
    written = [(extent, rank) for rank, extents in assigned.items() for extent in extents]
    assert sorted(extent for extent, _ in written) == sorted(holders)
    assert all(rank in holders[extent] for extent, rank in written)
    for spec in specs:
        assert sum(e.stop - e.start for e, _ in written if e.name == spec.name) == spec.cut_size
