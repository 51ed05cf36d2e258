from itertools import accumulate, combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenkeel.layouts.programs.execution import times
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.schedules import SCHEDULES, one_f_one_b
from evenkeel.planning.levers.balance.splits import least_slowest, least_sum
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from tests.unit.planning.planning_cases import one_f_one_b_makespan, ranges_of

SPEEDS = st.lists(st.floats(0.2, 1.0), min_size=2, max_size=5)
SECONDS = st.floats(0.01, 5.0)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), st.integers(1, 14), st.floats(0.0, 1.0))
@settings(max_examples=150, deadline=None)
def test_the_short_way_to_a_1f1b_pipelines_time_is_the_longest_path_through_its_programs(stages, quota, transfer):
    programs = [one_f_one_b(s, len(stages), range(quota)) for s in range(len(stages))]
    timelines = times(programs, lambda s, one: stages[s][one.op is Op.BACKWARD], transfer)
    expected = max(stage.end_seconds for stage in timelines)
    assert one_f_one_b_makespan(stages, quota, transfer) == pytest.approx(expected, rel=1e-9)


@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=4),
    st.integers(240, 400),
    st.floats(0.0, 1.0),
    st.sampled_from(["1f1b", "zb-h1"]),
)
@settings(max_examples=30, deadline=None)
def test_with_hundreds_of_micro_batches_the_end_is_that_of_the_programs(stages, quota, transfer, schedule):
    borders = np.full(len(stages) - 1, transfer)
    parts = np.array([(f, b + w, 0.0) if schedule == "1f1b" else (f, b, w) for f, b, w in stages])

    def seconds_of(stage, one):
        forward, of_input, of_weights = stages[stage]
        whole = {Op.FORWARD: forward, Op.BACKWARD: of_input + of_weights, Op.BACKWARD_INPUT: of_input}
        return whole.get(one.op, of_weights)

    programs = [SCHEDULES[schedule](s, len(stages), range(quota)) for s in range(len(stages))]
    timelines = times(programs, seconds_of, transfer)
    expected = max(stage.end_seconds for stage in timelines)
    assert pipeline_makespan(parts, quota, borders) == pytest.approx(expected, rel=1e-9)


@given(
    st.lists(SECONDS, min_size=2, max_size=9),
    st.lists(st.floats(0.2, 1.0), min_size=2, max_size=5),
    st.floats(1.0, 3.0),
)
@example([1.0, 1.0, 2.0, 2.0, 4.0, 1.0, 1.0], [0.5, 0.25, 1.0], 1.0)
@settings(max_examples=150, deadline=None)
def test_of_all_splits_in_which_no_stage_lasts_longer_that_of_the_least_sum_is_found(blocks, speeds, slack):
    speeds = speeds[: len(blocks)]
    prefix = np.array([list(accumulate([seconds / speed for seconds in blocks], initial=0.0)) for speed in speeds])
    rows, ranges = np.arange(len(speeds)), ranges_of(prefix)
    cap, borders = slack * least_slowest(ranges), np.empty(len(speeds) + 1, np.int64)

    def parts(inner):
        return prefix[rows, [*inner, len(blocks)]] - prefix[rows, [0, *inner]]

    every = map(parts, combinations(range(1, len(blocks)), len(speeds) - 1))
    least = min(each.sum() for each in every if each.max() <= cap)
    assert least_sum(ranges, cap, borders) == pytest.approx(least, rel=1e-9)
    assert (borders[0], borders[-1]) == (0, len(blocks))
    found = parts(borders[1:-1].tolist())
    assert found.max() <= cap
    assert found.sum() == pytest.approx(least, rel=1e-9)


@given(st.lists(SECONDS, min_size=2, max_size=9), st.lists(st.floats(0.2, 1.0), min_size=2, max_size=5))
@example([1.0, 2.0, 1.0, 3.0, 1.0], [1.0, 0.25, 0.5, 1.0])
@settings(max_examples=150, deadline=None)
def test_the_slowest_stage_is_that_of_the_split_in_which_it_is_quickest(blocks, speeds):
    speeds = speeds[: len(blocks)]
    prefix = np.array([list(accumulate([seconds / speed for seconds in blocks], initial=0.0)) for speed in speeds])
    rows = np.arange(len(speeds))
    least = min(
        (prefix[rows, [*inner, len(blocks)]] - prefix[rows, [0, *inner]]).max()
        for inner in combinations(range(1, len(blocks)), len(speeds) - 1)
    )
    assert least_slowest(ranges_of(prefix)) == least
