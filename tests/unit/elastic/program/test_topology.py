"""Groups of an epoch: few, and none of everybody where everybody is many."""

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.program.topology import TRANSFER, WORLD, groups_of
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap


def test_eight_ranks_have_nineteen_groups_and_vote_in_one(small_config: TrainingConfig) -> None:
    layout = uniform_layout(num_blocks=5, tensor=2, pipeline=2, data=2, num_micro_batches=4)
    specs = groups_of(OwnershipMap(parameter_specs(small_config.model), layout))
    assert len(specs) == 19
    assert [spec.ranks for spec in specs if spec.name.startswith(WORLD)] == [layout.ranks]


@given(data=st.data(), vote_width=st.integers(2, 6), leavers=st.sets(st.integers(100, 110), max_size=4))
def test_no_group_in_which_everybody_agrees_is_wider_than_the_vote(
    data: st.DataObject, any_layout: st.SearchStrategy, small_config: TrainingConfig, vote_width: int, leavers: set[int]
) -> None:
    layout = data.draw(any_layout)
    specs = groups_of(OwnershipMap(parameter_specs(small_config.model), layout), leavers, vote_width)
    assert len({spec.name for spec in specs}) == len(specs)
    assert all(len(spec.ranks) > 1 for spec in specs)
    for name, ranks in ((WORLD, set(layout.ranks)), (TRANSFER, {*layout.ranks, *leavers})):
        groups = [spec.ranks for spec in specs if spec.name.split("/")[0] == name]
        assert all(len(group) <= vote_width for group in groups)
        if name == WORLD or leavers:
            _assert_connected(groups, ranks)


def _assert_connected(groups: list[tuple[int, ...]], ranks: set[int]) -> None:
    reached = {min(ranks)}
    while more := {rank for group in groups if reached & set(group) for rank in group} - reached:
        reached |= more
    assert reached == ranks
