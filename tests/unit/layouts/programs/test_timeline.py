import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.programs.execution import times
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.schedules import one_f_one_b
from tests.unit.layouts.timeline import timeline_of

seconds = st.floats(0.001, 10.0)


def programs(num_stages, num_micro_batches):
    return [one_f_one_b(s, num_stages, range(num_micro_batches)) for s in range(num_stages)]


def costs(forward, backward):
    return lambda stage, i: (forward if i.op is Op.FORWARD else backward)[stage]


@given(st.integers(1, 6), st.integers(1, 24), seconds, seconds)
@settings(max_examples=60, deadline=None)
def test_equal_stages_under_1f1b_have_the_closed_form_bubble(p, m, forward, backward):
    layout = uniform_layout(num_blocks=p, tensor=1, pipeline=p, data=1, num_micro_batches=m)
    timeline = timeline_of(layout, lambda d, s, i: forward if i.op is Op.FORWARD else backward)
    assert timeline.iteration_seconds == pytest.approx((m + p - 1) * (forward + backward))
    for s in range(p):
        assert timeline.stages[0][s].busy_seconds == pytest.approx(m * (forward + backward))
        assert timeline.bubble_fraction(0, s) == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=5), st.integers(1, 12), st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_no_iteration_is_shorter_than_its_busiest_stage_or_than_one_micro_batch_through_all(stages, m, transfer):
    forward, backward = [f for f, _ in stages], [b for _, b in stages]
    result = times(programs(len(stages), m), costs(forward, backward), transfer)
    end = max(stage.end_seconds for stage in result)
    assert end >= m * max(f + b for f, b in stages) - 1e-9
    assert end >= sum(forward) + sum(backward) + 2 * (len(stages) - 1) * transfer - 1e-9


@given(
    st.lists(st.tuples(seconds, seconds), min_size=2, max_size=4), st.integers(1, 8), st.data(), st.floats(0.01, 2.0)
)
@settings(max_examples=40, deadline=None)
def test_a_slower_stage_never_makes_the_iteration_shorter(stages, m, data, more):
    forward, backward = [f for f, _ in stages], [b for _, b in stages]
    before = times(programs(len(stages), m), costs(forward, backward), 0.01)
    forward[data.draw(st.integers(0, len(stages) - 1))] += more
    after = times(programs(len(stages), m), costs(forward, backward), 0.01)
    assert max(s.end_seconds for s in after) >= max(s.end_seconds for s in before) - 1e-9


def test_transfers_add_to_the_fill_and_the_drain():
    end = max(s.end_seconds for s in times(programs(2, 1), costs([1.0, 1.0], [2.0, 2.0]), 0.5))
    assert end == pytest.approx(1 + 0.5 + 1 + 2 + 0.5 + 2)


def test_the_slowest_replica_decides_and_the_others_wait():
    layout = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=2, num_micro_batches=8)
    timeline = timeline_of(layout, lambda d, s, i: 2.0 if d == 1 else 1.0)
    assert timeline.iteration_seconds == pytest.approx((4 + 1) * 4.0)
    assert timeline.bubble_fraction(0, 0) == pytest.approx(1 - 8.0 / 20.0)


def test_a_program_that_waits_for_what_nobody_sends_is_refused():
    stuck = [(Instruction(Op.FORWARD, 0),), (Instruction(Op.RECEIVE_ACTIVATION, 0), Instruction(Op.FORWARD, 0))]
    with pytest.raises(ValueError, match=r"stage 1 of 2 waits for ever .* nobody sends it"):
        times(stuck, lambda s, i: 1.0)
