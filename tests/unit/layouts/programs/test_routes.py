from dataclasses import replace

import pytest
from hypothesis import given, settings

from evenkeel.layouts.codec import layout_from_proto, layout_to_proto
from evenkeel.layouts.layout import LayoutError, Replica, Stage, uniform_layout
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.programs.schedules import most_live, program_of, routed_program
from tests.unit.layouts.strategies import layouts, possible_routes, routed_layouts
from tests.unit.layouts.timeline import timeline_of

UNIFORM = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=2, num_micro_batches=8)
_COMPUTES = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)


def route(micro_batch, stage, replica):
    return Route(micro_batch=micro_batch, stage=stage, replica=replica)


def computed(program):
    return [(one.op, one.micro_batch) for one in program if one.op in _COMPUTES]


@settings(max_examples=200)
@given(routed_layouts())
def test_routes_survive_the_wire(layout):
    assert layout_from_proto(layout_to_proto(layout)) == layout


@given(layouts())
def test_without_routes_the_order_is_the_schedules_own(layout):
    for d, replica in enumerate(layout.replicas):
        for s in range(len(replica.stages)):
            assert routed_program(layout, Paths(layout), d, s) == program_of(layout, d, s)


@settings(max_examples=200)
@given(routed_layouts())
def test_every_stage_of_every_micro_batch_is_in_one_program_and_the_timeline_ends(layout):
    timeline = timeline_of(layout, lambda d, s, instruction: 1.0, transfer_seconds=0.25)
    seen = []
    for d, replica in enumerate(layout.replicas):
        for s in range(len(replica.stages)):
            program = program_of(layout, d, s)
            seen += [(one.micro_batch, s) for one in program if one.op is Op.FORWARD]
            computing = sum(one.op in _COMPUTES for one in program)
            assert timeline.stages[d][s].busy_seconds == computing
            assert timeline.stages[d][s].end_seconds >= computing
            assert most_live(program) <= sum(one.op is Op.FORWARD for one in program)
    paths = Paths(layout)
    due = [(m, s) for m in range(layout.num_micro_batches) for s in range(len(layout.replicas[paths.home(m)].stages))]
    assert sorted(seen) == due


def test_whatever_is_routed_is_given_sorted():
    chosen = replace(UNIFORM, routes=(route(5, 0, 0), route(1, 1, 1), route(1, 0, 1)))
    assert chosen.routes == (route(1, 0, 1), route(1, 1, 1), route(5, 0, 0))


def test_a_guest_takes_turns_with_the_micro_batches_of_its_host():
    chosen = replace(UNIFORM, routes=(route(1, 1, 1), route(3, 1, 1)))
    assert [one for _, one in computed(program_of(chosen, 0, 1))] == [0, 0, 2, 2]
    assert [one for _, one in computed(program_of(chosen, 1, 1))] == [4, 4, 1, 1, 5, 5, 6, 6, 3, 3, 7, 7]
    assert program_of(chosen, 0, 0) == program_of(UNIFORM, 0, 0)
    assert Paths(chosen).hosted(1, 1) == (1, 3, 4, 5, 6, 7)


def test_different_stages_of_two_replicas_at_half_speed_relieve_one_another():
    def seconds_of(d, s, instruction):
        return (1.0 if instruction.op is Op.FORWARD else 2.0) * (2.0 if (d, s) in ((0, 1), (1, 0)) else 1.0)

    slow = timeline_of(UNIFORM, seconds_of).iteration_seconds
    one_each = replace(UNIFORM, routes=(route(0, 1, 1), route(4, 0, 0)))
    half = replace(UNIFORM, routes=(route(0, 1, 1), route(2, 1, 1), route(6, 0, 0), route(7, 0, 0)))
    assert slow == pytest.approx(4 * 6.0 + 3.0)
    assert timeline_of(one_each, seconds_of).iteration_seconds == pytest.approx(24.0)
    assert timeline_of(half, seconds_of).iteration_seconds == pytest.approx(22.0)


@pytest.mark.parametrize(
    ("routes", "complaint"),
    [
        ((route(8, 0, 1),), "8 micro-batches and 2 replicas"),
        ((route(0, 0, 2),), "8 micro-batches and 2 replicas"),
        ((route(-1, 0, 1),), "8 micro-batches and 2 replicas"),
        ((route(0, 0, 0),), "of that replica anyway"),
        ((route(0, 2, 1),), "stage 2 has blocks None"),
        ((route(0, -1, 1),), "stage -1 has blocks None"),
        ((route(0, 0, 1), route(0, 0, 1)), "stage 0 of micro-batch 0 is routed twice"),
    ],
)
def test_routes_that_cannot_be_are_refused(routes, complaint):
    with pytest.raises(LayoutError, match=complaint):
        replace(UNIFORM, routes=routes)


def test_a_host_with_other_blocks_is_refused_with_both_ranges():
    def replica(border, first_rank):
        stages = (
            Stage(first_block=0, stop_block=border, ranks=(first_rank,), shares=(1,)),
            Stage(first_block=border, stop_block=4, ranks=(first_rank + 1,), shares=(1,)),
        )
        return Replica(stages=stages, num_micro_batches=4)

    uneven = replace(UNIFORM, replicas=(replica(2, 0), replica(3, 2)))
    assert possible_routes(uneven) == []
    with pytest.raises(LayoutError, match=r"blocks \(0, 2\) in replica 0 and \(0, 3\) in replica 1"):
        replace(uneven, routes=(route(0, 0, 1),))
