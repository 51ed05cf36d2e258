from itertools import accumulate, combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layouts.instructions import Op
from layouts.schedules import one_f_one_b
from layouts.timeline import run_programs
from services.scheduler.planning.levers.layer_split import split_candidates
from services.scheduler.planning.one_f_one_b import one_f_one_b_makespan

SECONDS = st.floats(0.01, 5.0)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), st.integers(1, 14), st.floats(0.0, 1.0))
@settings(max_examples=150, deadline=None)
def test_the_short_way_to_a_1f1b_pipelines_time_is_the_longest_path_through_its_programs(stages, quota, transfer):
    programs = [one_f_one_b(s, len(stages), range(quota)) for s in range(len(stages))]
    timelines = run_programs(programs, lambda s, one: stages[s][one.op is Op.BACKWARD], transfer)
    expected = max(stage.end_seconds for stage in timelines)
    assert one_f_one_b_makespan(tuple(stages), quota, transfer) == pytest.approx(expected, rel=1e-9)


@given(
    st.lists(SECONDS, min_size=2, max_size=9),
    st.lists(st.floats(0.2, 1.0), min_size=2, max_size=5),
    st.integers(1, 30),
)
@example([1.0, 1.0, 2.0, 2.0, 4.0, 1.0, 1.0], [0.5, 0.25, 1.0], 3)
@settings(max_examples=150, deadline=None)
def test_the_first_split_is_the_best_of_all_by_sum_and_maximum(blocks, speeds, quota):
    speeds = speeds[: len(blocks)]
    costs = [[seconds / speed for seconds in blocks] for speed in speeds]
    prefix = [list(accumulate(each, initial=0.0)) for each in costs]

    def value(inner):
        borders = (0, *inner, len(blocks))
        parts = [sum(costs[s][borders[s] : borders[s + 1]]) for s in range(len(speeds))]
        return sum(parts) + (quota - 1) * max(parts)

    every = [value(inner) for inner in combinations(range(1, len(blocks)), len(speeds) - 1)]
    found = split_candidates(prefix, quota, max(every))
    assert value(found[0]) == pytest.approx(min(every), rel=1e-9)
