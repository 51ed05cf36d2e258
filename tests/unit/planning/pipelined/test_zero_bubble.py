"""What ZB-H1 is predicted to take: the programs' longest path, the paper's closed form, and never more memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.programs.execution import times
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.schedules import one_f_one_b, zero_bubble_h1
from evenkeel.planning.pipelined.makespan import pipeline_makespan

SECONDS = st.floats(0.01, 5.0)


def zb_h1_makespan(stages, quota, transfer):
    return pipeline_makespan(np.array(stages), quota, np.full(len(stages) - 1, transfer))


_PLACE = {Op.FORWARD: 0, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2}


@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=6),
    st.integers(1, 30),
    st.floats(0.0, 1.0),
)
@settings(max_examples=150, deadline=None)
def test_the_short_way_is_the_longest_path_through_the_programs(stages, quota, transfer):
    programs = [zero_bubble_h1(s, len(stages), range(quota)) for s in range(len(stages))]
    timelines = times(programs, lambda s, one: stages[s][_PLACE[one.op]], transfer)
    expected = max(stage.end_seconds for stage in timelines)
    assert zb_h1_makespan(stages, quota, transfer) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 8), st.integers(0, 20), SECONDS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=150, deadline=None)
def test_equal_stages_have_the_papers_bubble(num_stages, more, weight, forward_more, backward_more):
    quota, forward, backward = num_stages + more, weight + forward_more, weight + backward_more
    bubble = (num_stages - 1) * (forward + backward - weight)
    expected = quota * (forward + backward + weight) + bubble
    assert zb_h1_makespan([(forward, backward, weight)] * num_stages, quota, 0.0) == pytest.approx(expected)
    fused = [one_f_one_b(s, num_stages, range(quota)) for s in range(num_stages)]
    whole = times(fused, lambda s, one: forward if one.op is Op.FORWARD else backward + weight)
    assert max(stage.end_seconds for stage in whole) == pytest.approx(expected + 2 * (num_stages - 1) * weight)


def test_of_three_equal_parts_two_thirds_of_the_bubble_of_1f1b_are_gone():
    assert zb_h1_makespan([(1.0, 1.0, 1.0)] * 4, 8, 0.0) == pytest.approx(8 * 3 + 3)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0.2, 1.0)), min_size=1, max_size=7),
    st.integers(1, 24),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
@settings(max_examples=150, deadline=None)
def test_stages_of_any_size_and_speed_are_never_slower_than_under_1f1b(stages, quota, attention, transfer):
    whole, parts = [], []
    for num_blocks, speed in stages:
        weight = num_blocks / speed
        forward = weight * (1.0 + attention)
        whole.append((forward, 2.0 * forward, 0.0))
        parts.append((forward, 2.0 * forward - weight, weight))
    assert zb_h1_makespan(parts, quota, transfer) <= zb_h1_makespan(whole, quota, transfer) * (1.0 + 1e-9)
