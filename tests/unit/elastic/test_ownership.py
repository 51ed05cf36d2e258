from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap


@given(data=st.data())
def test_every_replica_holds_every_element_once_or_whole(
    data: st.DataObject, any_layout: st.SearchStrategy, small_config: TrainingConfig
) -> None:
    layout = data.draw(any_layout)
    specs = parameter_specs(small_config.model)
    ownership = OwnershipMap(specs, layout)
    for spec in specs:
        for d in range(len(layout.replicas)):
            holdings = [held for held in ownership.holdings(spec.name) if held.replica == d]
            counted = [0] * spec.cut_size
            for held in holdings:
                assert held.slice.start % spec.granule == held.slice.stop % spec.granule == 0
                if held.contributes:
                    for index in range(held.slice.start, held.slice.stop):
                        counted[index] += 1
            assert counted == [1] * spec.cut_size, f"{spec.name} in replica {d}"
            if spec.axis is None:
                assert all(len(held.slice) == spec.cut_size for held in holdings)


@given(data=st.data())
def test_what_a_rank_holds_belongs_to_the_blocks_of_its_stages(
    data: st.DataObject, any_layout: st.SearchStrategy, small_config: TrainingConfig
) -> None:
    layout = data.draw(any_layout)
    specs = {spec.name: spec for spec in parameter_specs(small_config.model)}
    ownership = OwnershipMap(tuple(specs.values()), layout)
    for rank, position in layout.positions():
        stages = [layout.replicas[position.replica].stages[s] for s in layout.cell_at(position)]
        blocks = {specs[name].block for name in ownership.held_by(rank)}
        assert blocks == {block for stage in stages for block in range(stage.first_block, stage.stop_block)}
    assert ownership.held_by(99) == {}
