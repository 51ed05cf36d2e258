from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import Replica, Stage
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
        held, stretches = ownership.holders(spec.name), ownership.stretches(spec.name)
        for stage in (_stage_with(spec.block, replica) for replica in layout.replicas):
            slices = [held[rank] for rank in stage.ranks]
            counted = [0] * spec.cut_size
            for each in stretches:
                assert each.ranks == tuple(
                    sorted(rank for rank, one in held.items() if one.start <= each.start and each.stop <= one.stop)
                )
                for index in range(each.start, each.stop):
                    counted[index] += len(each.contributors.intersection(stage.ranks))
            assert counted == [1] * spec.cut_size, f"{spec.name} of {stage}"
            assert all(one.start % spec.granule == one.stop % spec.granule == 0 for one in slices)
            if spec.axis is None:
                assert all(len(one) == spec.cut_size for one in slices)


def _stage_with(block: int, replica: Replica) -> Stage:
    return next(stage for stage in replica.stages if stage.first_block <= block < stage.stop_block)


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
