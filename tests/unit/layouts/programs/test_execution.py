import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.programs.execution import COMPUTES, RECEIVES, StuckError, times, walk
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.schedules import SCHEDULES, one_f_one_b

SENT_AS = {Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1)}


def programs_of(schedule, num_stages, num_micro_batches):
    return [SCHEDULES[schedule](s, num_stages, range(num_micro_batches)) for s in range(num_stages)]


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6), st.integers(1, 9))
def test_a_walk_has_every_instruction_once_in_program_order_and_no_receive_before_its_send(schedule, stages, count):
    programs = programs_of(schedule, stages, count)
    steps = list(walk(programs))
    for place, program in enumerate(programs):
        assert tuple(one for at, one, _ in steps if at == place) == tuple(program)
    seen = set()
    for place, one, other in steps:
        if one.op in RECEIVES:
            op, offset = SENT_AS[one.op]
            assert (other, op, one.micro_batch) in seen
            assert other == place + offset
        seen.add((place, one.op, one.micro_batch))


@given(st.integers(1, 5), st.integers(1, 8), st.data())
def test_no_place_ends_before_the_longest_way_that_leads_to_it(stages, count, data):
    programs = programs_of("1f1b", stages, count)
    seconds = {
        (s, one): data.draw(st.floats(0.1, 2.0)) for s, p in enumerate(programs) for one in p if one.op in COMPUTES
    }
    found = times(programs, lambda s, one: seconds[s, one], 0.25)
    for s, place in enumerate(found):
        own = sum(value for (at, _), value in seconds.items() if at == s)
        way_in = sum(seconds[at, Instruction(Op.FORWARD, 0, at)] + 0.25 for at in range(s))
        assert place.busy_seconds == pytest.approx(own)
        assert place.end_seconds >= own + way_in - 1e-9


def test_who_waits_for_ever_is_named():
    stuck = [one_f_one_b(0, 2, range(1)), (Instruction(Op.RECEIVE_ACTIVATION, 3, 1), Instruction(Op.FORWARD, 3, 1))]
    with pytest.raises(StuckError, match=r"waits for ever .* nobody sends it") as caught:
        list(walk(stuck))
    assert caught.value.instruction.op in RECEIVES


def test_a_transfer_may_hang_on_the_place_and_the_instruction():
    programs = programs_of("1f1b", 3, 1)
    plain = times(programs, lambda s, one: 1.0)
    late = times(programs, lambda s, one: 1.0, lambda s, one: 5.0 if s == 1 and one.op is Op.SEND_ACTIVATION else 0.0)
    assert [b.end_seconds - a.end_seconds for a, b in zip(plain, late, strict=True)] == [5.0, 5.0, 5.0]
