from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.gradients.exchange import plan_exchange
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap


@given(data=st.data())
def test_every_held_element_is_in_one_piece_with_all_its_holders_and_one_contributor_a_replica(
    data: st.DataObject, any_layout: st.SearchStrategy, small_config: TrainingConfig
) -> None:
    layout = data.draw(any_layout)
    specs = parameter_specs(small_config.model)
    ownership = OwnershipMap(specs, layout)
    replica_of = {rank: position.replica for rank, position in layout.positions()}
    pieces: dict[tuple[str, int], tuple[tuple[int, ...], frozenset[int]]] = {}
    for bucket in plan_exchange(ownership):
        elements = 0
        for piece in bucket.pieces:
            elements += (piece.stop - piece.start) * ownership.specs[piece.name].row_elements
            for index in range(piece.start, piece.stop):
                assert (piece.name, index) not in pieces, "an element in two pieces"
                pieces[piece.name, index] = (bucket.ranks, piece.contributors)
        assert elements == bucket.num_elements
    for spec in specs:
        for index in range(spec.cut_size):
            holders = [rank for rank, held in ownership.holders(spec.name).items() if held.start <= index < held.stop]
            ranks, contributors = pieces[spec.name, index]
            assert ranks == tuple(sorted(holders))
            assert contributors <= set(holders)
            assert sorted(replica_of[rank] for rank in contributors) == list(range(len(layout.replicas)))


def test_equal_layouts_give_the_usual_all_reduce_groups(small_config: TrainingConfig) -> None:
    layout = uniform_layout(num_blocks=5, tensor=2, pipeline=2, data=2, num_micro_batches=4)
    buckets = plan_exchange(OwnershipMap(parameter_specs(small_config.model), layout))
    assert [bucket.ranks for bucket in buckets] == [(0, 1, 4, 5), (0, 4), (1, 5), (2, 3, 6, 7), (2, 6), (3, 7)]
