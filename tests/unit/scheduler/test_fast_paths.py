from itertools import accumulate, combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenkeel.layouts.programs.execution import times
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.schedules import SCHEDULES, one_f_one_b
from evenkeel.planning.levers.balance.splits import least_slowest, split_candidates
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from tests.unit.scheduler.planning_cases import one_f_one_b_makespan, ranges_of

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
    st.integers(1, 30),
)
@example([1.0, 1.0, 2.0, 2.0, 4.0, 1.0, 1.0], [0.5, 0.25, 1.0], 3)
@settings(max_examples=150, deadline=None)
def test_the_best_of_all_splits_by_sum_and_maximum_is_among_those_found(blocks, speeds, quota):
    speeds = speeds[: len(blocks)]
    costs = [[seconds / speed for seconds in blocks] for speed in speeds]
    prefix = [list(accumulate(each, initial=0.0)) for each in costs]

    def value(inner):
        borders = (0, *inner, len(blocks))
        parts = [sum(costs[s][borders[s] : borders[s + 1]]) for s in range(len(speeds))]
        return sum(parts) + (quota - 1) * max(parts)

    every = [value(inner) for inner in combinations(range(1, len(blocks)), len(speeds) - 1)]
    found, told = split_candidates(ranges_of(np.array(prefix)), quota)
    values = [value(inner[1:-1]) for inner in found.tolist()]
    assert min(values) == pytest.approx(min(every), rel=1e-9)
    assert values == pytest.approx(told.tolist(), rel=1e-9)
    assert {(inner[0], inner[-1]) for inner in found.tolist()} == {(0, len(blocks))}


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
