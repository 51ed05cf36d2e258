import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.schedules import SCHEDULES, SPLIT_BACKWARD, live_activations, program_of, schedules_named
from tests.unit.layouts.strategies import layouts

# What must have been sent by which neighbour (offset in stages) before a receive can end.
SENT_BY = {Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1)}
_PASSES = ((Op.FORWARD, Op.BACKWARD), (Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT))
_LAST_USES = (Op.BACKWARD, Op.BACKWARD_WEIGHT)
_COMPUTES = (Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)


def runs_to_the_end(programs):
    """Plays all stages' programs with blocking receives; False when they deadlock."""
    positions = [0] * len(programs)
    done = [set() for _ in programs]
    moved = True
    while moved:
        moved = False
        for s, program in enumerate(programs):
            while positions[s] < len(program):
                instruction = program[positions[s]]
                if instruction.op in SENT_BY:
                    send, offset = SENT_BY[instruction.op]
                    if Instruction(send, instruction.micro_batch, s + offset) not in done[s + offset]:
                        break
                done[s].add(instruction)
                positions[s] += 1
                moved = True
    return all(position == len(program) for position, program in zip(positions, programs, strict=True))


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6), st.integers(0, 9))
def test_no_schedule_deadlocks_and_each_micro_batch_passes_once(name, num_stages, num_micro_batches):
    micro_batches = range(3, 3 + num_micro_batches)
    programs = [SCHEDULES[name](s, num_stages, micro_batches) for s in range(num_stages)]
    assert runs_to_the_end(programs)
    for s, program in enumerate(programs):
        order = {op: [one.micro_batch for one in program if one.op is op] for op in Op}
        assert order[Op.FORWARD] == list(micro_batches)
        if name in SPLIT_BACKWARD:
            assert not order[Op.BACKWARD]
            assert order[Op.BACKWARD_INPUT] == order[Op.BACKWARD_WEIGHT] == list(micro_batches)
        else:
            assert not order[Op.BACKWARD_INPUT]
            assert not order[Op.BACKWARD_WEIGHT]
            assert order[Op.BACKWARD] == list(micro_batches)
        passes = [program.index(Instruction(op, m, s)) for m in micro_batches for op in _PASSES[name in SPLIT_BACKWARD]]
        each = len(_PASSES[name in SPLIT_BACKWARD])
        assert all(passes[i] < passes[i + 1] for i in range(len(passes) - 1) if (i + 1) % each)
        assert [one.op for one in program[-2:]] == [Op.REDUCE, Op.STEP]
        assert sum(one.op is Op.RECEIVE_ACTIVATION for one in program) == (num_micro_batches if s else 0)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 7), st.integers(1, 12))
def test_a_stage_holds_as_many_activations_as_is_said_and_never_more_than_the_first_stage_of_1f1b(
    name, num_stages, num_micro_batches
):
    first_of_1f1b = live_activations("1f1b", 0, num_stages, num_micro_batches)
    for s in range(num_stages):
        live = peak = 0
        for instruction in SCHEDULES[name](s, num_stages, range(num_micro_batches)):
            live += (instruction.op is Op.FORWARD) - (instruction.op in _LAST_USES)
            peak = max(peak, live)
        assert live == 0
        assert peak == live_activations(name, s, num_stages, num_micro_batches) <= first_of_1f1b


def test_the_first_stage_of_zb_h1_puts_nothing_off_and_the_last_the_most():
    first = [one.op for one in SCHEDULES["zb-h1"](0, 3, range(4)) if one.op is not Op.FORWARD]
    assert first.index(Op.BACKWARD_WEIGHT) == first.index(Op.BACKWARD_INPUT) + 1
    last = [(one.op, one.micro_batch) for one in SCHEDULES["zb-h1"](2, 3, range(4)) if one.op in _COMPUTES]
    assert last == [
        (Op.FORWARD, 0),
        (Op.BACKWARD_INPUT, 0),
        (Op.FORWARD, 1),
        (Op.BACKWARD_INPUT, 1),
        (Op.FORWARD, 2),
        (Op.BACKWARD_INPUT, 2),
        (Op.BACKWARD_WEIGHT, 0),
        (Op.FORWARD, 3),
        (Op.BACKWARD_INPUT, 3),
        (Op.BACKWARD_WEIGHT, 1),
        (Op.BACKWARD_WEIGHT, 2),
        (Op.BACKWARD_WEIGHT, 3),
    ]


@given(layouts())
def test_all_programs_of_a_layout_cover_its_global_batch(layout):
    last_stages = [program_of(layout, d, len(replica.stages) - 1) for d, replica in enumerate(layout.replicas)]
    seen = [one.micro_batch for program in last_stages for one in program if one.op in _LAST_USES]
    assert seen == list(range(layout.num_micro_batches))


def test_an_unknown_schedule_is_named_with_the_known_ones():
    layout = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=1, num_micro_batches=2, schedule="zig-zag")
    with pytest.raises(ValueError, match=r"'zig-zag'; known: 1f1b, zb-h1"):
        program_of(layout, 0, 0)


@pytest.mark.parametrize(
    ("written", "meant"),
    [(True, ("1f1b", "zb-h1")), (False, ()), (["zb-h1"], ("zb-h1",)), (["zb-h1", "1f1b", "zb-h1"], ("zb-h1", "1f1b"))],
)
def test_schedules_are_written_as_a_list_or_as_all_of_them(written, meant):
    assert schedules_named(written) == meant


@pytest.mark.parametrize("written", ["zb-h1", ["zig-zag"], [1], {"1f1b": True}, None, 1])
def test_anything_else_is_refused_with_what_may_be_written(written):
    with pytest.raises(ValueError, match=r"schedules is .*: true, or a list of 1f1b, zb-h1"):
        schedules_named(written)
