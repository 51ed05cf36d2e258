import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.codec import layout_from_proto, layout_to_proto, model_from_proto, model_to_proto
from evenkeel.layouts.layout import Layout, LayoutError, Replica, Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from tests.unit.layouts.strategies import layouts, ordered_layouts


def stage(first, stop, ranks=(0,), shares=None):
    return Stage(first_block=first, stop_block=stop, ranks=ranks, shares=shares or (1,) * len(ranks))


def layout_of(*stages, quota=1, num_blocks=4):
    return Layout(num_blocks=num_blocks, replicas=(Replica(stages=stages, num_micro_batches=quota),))


@given(layouts() | ordered_layouts())
def test_a_layout_survives_the_wire(layout):
    assert layout_from_proto(layout_to_proto(layout)) == layout


@given(layouts() | ordered_layouts())
def test_every_rank_is_found_where_positions_say(layout):
    assert sorted(rank for rank, _ in layout.positions()) == list(layout.ranks)
    for rank, position in layout.positions():
        assert layout.position_of(rank) == position
        assert layout.stage_at(position).ranks[position.shard] == rank
    for standby in layout.standbys:
        assert layout.position_of(standby) is None


@given(layouts())
def test_replicas_share_the_global_batch_without_gap_or_overlap(layout):
    indices = [index for d in range(len(layout.replicas)) for index in layout.micro_batches_of(d)]
    assert indices == list(range(layout.num_micro_batches))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 12), st.integers(4, 20))
def test_a_uniform_layout_uses_each_rank_once_and_divides_evenly(tensor, pipeline, data, num_micro_batches, blocks):
    layout = uniform_layout(
        num_blocks=blocks, tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=num_micro_batches
    )
    assert layout.ranks == tuple(range(tensor * pipeline * data))
    assert layout.num_micro_batches == num_micro_batches
    sizes = [one.num_blocks for one in layout.replicas[0].stages]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: stage(2, 2), "at least one"),
        (lambda: stage(0, 1, ranks=()), "no rank"),
        (lambda: stage(0, 1, ranks=(0, 1), shares=(1,)), "2 ranks"),
        (lambda: stage(0, 1, ranks=(0, 1), shares=(1, 0)), "leave the rank out"),
        (lambda: layout_of(stage(0, 2), stage(3, 4, (1,))), "starts at block 3, expected 2"),
        (lambda: layout_of(stage(0, 3)), "ends at block 3 of 4"),
        (lambda: layout_of(stage(0, 2), stage(2, 4)), "ranks \\[0\\]"),
        (lambda: layout_of(stage(0, 4), quota=0), "no replica has any micro-batch"),
        (lambda: layout_of(stage(0, 4), quota=-1), "quota of -1"),
        (lambda: layout_of(stage(0, 4, ranks=(-1,))), "negative rank"),
        (lambda: Layout(num_blocks=1, replicas=()), "at least one replica"),
        (
            lambda: uniform_layout(num_blocks=1, tensor=1, pipeline=2, data=1, num_micro_batches=1),
            "1 blocks cannot fill 2",
        ),
        (
            lambda: uniform_layout(num_blocks=1, tensor=0, pipeline=1, data=1, num_micro_batches=1),
            "each must be at least 1",
        ),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused_with_the_numbers(make, complaint):
    with pytest.raises(LayoutError, match=complaint):
        make()


def test_a_model_spec_survives_the_wire():
    block = BlockCost(
        forward_flops_per_token=24.0,
        forward_flops_per_squared_length=0.5,
        backward_multiple=2.5,
        parameter_bytes=10,
        optimizer_bytes=20,
        activation_bytes=30,
        max_width=12,
    )
    model = ModelSpec(blocks=(block, block), activation_bytes_per_token=384)
    assert model_from_proto(model_to_proto(model)) == model
    assert block.forward_flops(100, 50) == 2425.0
