import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.codec import layout_from_proto, layout_to_proto
from evenkeel.layouts.layout import Layout, LayoutError, Replica, Stage
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.layouts.programs.orders import Turn, cells_of, flaw_in, orders_from_lists, orders_to_lists
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.programs.schedules import most_live, program_of
from tests.unit.layouts.strategies import ordered_layouts
from tests.unit.layouts.timeline import timeline_of

F, B = Op.FORWARD, Op.BACKWARD
TWICE = interleaved_orders(2, 2, 4)


def stage(number, rank, shares=(1,)):
    ranks = tuple(range(rank, rank + len(shares)))
    return Stage(first_block=number, stop_block=number + 1, ranks=ranks, shares=shares)


def replica(orders=TWICE, quota=4, ranks=(0, 1, 0, 1)):
    return Replica(
        stages=tuple(stage(number, rank) for number, rank in enumerate(ranks)), num_micro_batches=quota, orders=orders
    )


def computed(program):
    return [(one.op, one.micro_batch, one.stage) for one in program if one.op in (F, B)]


@settings(max_examples=150, deadline=None)
@given(ordered_layouts())
def test_programs_do_each_pass_in_order_and_no_cell_waits_for_ever(layout):
    timeline_of(layout, lambda d, s, i: 1.0, transfer_seconds=0.5)  # raises when one does
    for d, one in enumerate(layout.replicas):
        first = layout.micro_batches_of(d).start
        for cell, order in zip(one.cells, one.orders, strict=True):
            program = program_of(layout, d, cell[-1])
            passes = [(i.op, i.micro_batch - first, i.stage) for i in program if i.op.value.startswith(("for", "back"))]
            assert passes == [tuple(turn) for turn in order]


@settings(max_examples=100, deadline=None)
@given(ordered_layouts(max_replicas=1), st.data())
def test_what_a_failure_leaves_of_an_iteration_can_always_be_carried_out(layout, data):
    (one,) = layout.replicas
    left = data.draw(st.integers(0, one.num_micro_batches))
    shorter = tuple(tuple(turn for turn in order if turn.place < left) for order in one.orders)
    assert not flaw_in(shorter, one.cells, left)
    numbers = range(7, 7 + left)
    for cell, order in zip(one.cells, shorter, strict=True):
        program = program_of(layout, 0, cell[0], numbers)
        ran = [(i.micro_batch, i.stage) for i in program if i.op is F]
        assert ran == [(7 + turn.place, turn.stage) for turn in order if turn.op is F]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 13))
@settings(max_examples=80, deadline=None)
def test_interleaving_is_sound_for_any_quota(num_cells, num_chunks, quota):
    cells = cells_of([(s % num_cells,) for s in range(num_cells * num_chunks)])
    assert not flaw_in(interleaved_orders(num_cells, num_chunks, quota), cells, quota)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_interleaving_divides_the_idle_time_by_the_stages_a_cell(num_cells, num_chunks, rounds):
    quota, ranks = rounds * num_cells, [s % num_cells for s in range(num_cells * num_chunks)]
    one = replica(interleaved_orders(num_cells, num_chunks, quota), quota, ranks)
    layout = Layout(num_blocks=len(ranks), replicas=(one,))
    timeline = timeline_of(layout, lambda d, s, i: (1.0 if i.op is F else 2.0) / num_chunks)
    assert timeline.iteration_seconds == pytest.approx(3.0 * quota + 3.0 * (num_cells - 1) / num_chunks)
    assert timeline.stages[0][0].busy_seconds == pytest.approx(3.0 * quota)


def test_the_order_of_two_cells_with_two_stages_is_megatrons():
    first = [f"{'F' if turn.op is F else 'B'}{turn.place}.{turn.stage}" for turn in TWICE[0]]
    assert first == (
        "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0".split()  # noqa: SIM905
    )


def test_ranks_are_counted_once_and_stand_at_their_first_stage():
    layout = Layout(num_blocks=4, replicas=(replica(),), standbys=(2,))
    assert layout.ranks == (0, 1)
    assert [(rank, at.stage) for rank, at in layout.positions()] == [(0, 0), (1, 1)]
    assert layout.cell_at(layout.position_of(1)) == (1, 3)
    program = program_of(layout, 0, 0)
    assert program == program_of(layout, 0, 2)
    assert most_live(program) == 5


def test_a_cell_hands_tensors_to_itself_without_a_transfer():
    one = replica(interleaved_orders(1, 4, 2), 2, (0, 0, 0, 0))
    ops = {each.op for each in program_of(Layout(num_blocks=4, replicas=(one,)), 0, 0)}
    assert ops == {F, B, Op.REDUCE, Op.STEP}


def test_tensors_are_taken_in_the_order_in_which_they_are_sent():
    ranks = (0, 1)
    orders = (
        (Turn(F, 0, 0), Turn(F, 1, 0), Turn(B, 1, 0), Turn(B, 0, 0)),
        (Turn(F, 1, 1), Turn(B, 1, 1), Turn(F, 0, 1), Turn(B, 0, 1)),
    )
    program = program_of(Layout(num_blocks=2, replicas=(replica(orders, 2, ranks),)), 0, 1)
    assert [(one.op, one.micro_batch) for one in program][:3] == [
        (Op.RECEIVE_ACTIVATION, 0),
        (Op.RECEIVE_ACTIVATION, 1),
        (F, 1),
    ]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: replica(TWICE[:1]), "1 orders for 2 cells ((0, 2), (1, 3)): each cell needs one"),
        (lambda: replica(quota=5), "the order of cell 0 lacks micro-batch 4 of stage 0"),
        (lambda: replica(quota=3), "has, against the layout, micro-batch 3 of stage 0"),
        (lambda: replica((TWICE[0] + TWICE[0][:1], TWICE[1])), "has forward, backward, forward for micro-batch 0"),
        (lambda: replica((TWICE[0][::-1], TWICE[1])), "waits for ever"),
        (lambda: Layout(num_blocks=4, replicas=(replica(()),)), "ranks [0, 1] hold more than one position"),
        (
            lambda: Layout(num_blocks=4, replicas=(replica(), replica())),
            "ranks [0, 1] hold more than one position",
        ),
        (
            lambda: Replica(
                stages=(stage(0, 0, (1, 2)), stage(1, 0, (1, 1))),
                num_micro_batches=1,
                orders=interleaved_orders(1, 2, 1),
            ),
            "are cut in shares [(1, 1), (1, 2)]: they need the same",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_refused_with_the_place(make, complaint):
    with pytest.raises(LayoutError, match=re.escape(complaint)):
        make()


def test_routes_and_orders_do_not_go_together():
    others = replace(replica(), stages=tuple(stage(number, 2 + number % 2) for number in range(4)))
    layout = Layout(num_blocks=4, replicas=(replica(), others))
    with pytest.raises(LayoutError, match="routes and replicas with orders"):
        replace(layout, routes=(Route(micro_batch=0, stage=1, replica=1),))


def test_orders_are_written_with_letters():
    written = orders_to_lists(TWICE)
    assert written[0][:2] == [["F", 0, 0], ["F", 1, 0]]
    assert orders_from_lists(written) == TWICE
    with pytest.raises(ValueError, match="'X'; known: F, BW, B, W"):
        orders_from_lists([[["X", 0, 0]]])
    with pytest.raises(ValueError, match="'F'"):
        orders_from_lists([[["F", "F", 0]]])


@pytest.mark.parametrize("passes", [[], [9]])
def test_an_order_from_the_wire_that_makes_no_sense_is_refused(passes):
    message = layout_to_proto(Layout(num_blocks=4, replicas=(replica(),)))
    message.replicas[0].orders[0].passes[:] = passes
    with pytest.raises(LayoutError, match="this version does not know, or uneven lists"):
        layout_from_proto(message)
