import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts.instructions import Instruction, Op
from layouts.layout import uniform_layout
from layouts.schedules import SCHEDULES, program_of
from tests.unit.layouts.strategies import layouts

# What must have been sent by which neighbour (offset in stages) before a receive can end.
SENT_BY = {Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1)}


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
                    if Instruction(send, instruction.micro_batch) not in done[s + offset]:
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
        forwards = [one.micro_batch for one in program if one.op is Op.FORWARD]
        backwards = [one.micro_batch for one in program if one.op is Op.BACKWARD]
        assert forwards == backwards == list(micro_batches)
        assert [one.op for one in program[-2:]] == [Op.REDUCE, Op.STEP]
        assert sum(one.op is Op.RECEIVE_ACTIVATION for one in program) == (num_micro_batches if s else 0)


@given(st.integers(1, 6), st.integers(1, 9))
def test_one_f_one_b_holds_no_more_activations_than_stages_behind_it(num_stages, num_micro_batches):
    for s in range(num_stages):
        live = peak = 0
        for instruction in SCHEDULES["1f1b"](s, num_stages, range(num_micro_batches)):
            live += (instruction.op is Op.FORWARD) - (instruction.op is Op.BACKWARD)
            peak = max(peak, live)
        assert peak <= num_stages - s


@given(layouts())
def test_all_programs_of_a_layout_cover_its_global_batch(layout):
    last_stages = [program_of(layout, d, len(replica.stages) - 1) for d, replica in enumerate(layout.replicas)]
    seen = [one.micro_batch for program in last_stages for one in program if one.op is Op.BACKWARD]
    assert seen == list(range(layout.num_micro_batches))


def test_an_unknown_schedule_is_named_with_the_known_ones():
    layout = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=1, num_micro_batches=2, schedule="zig-zag")
    with pytest.raises(ValueError, match=r"'zig-zag'; known: 1f1b"):
        program_of(layout, 0, 0)
