from itertools import accumulate, combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layouts.instructions import Op
from layouts.schedules import SCHEDULES, one_f_one_b
from layouts.timeline import run_programs
from services.scheduler.planning.levers.layer_split import split_candidates
from services.scheduler.planning.one_f_one_b import forget_runs, one_f_one_b_makespan
from services.scheduler.planning.zero_bubble import forget_split_runs, split_makespan

SECONDS = st.floats(0.01, 5.0)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), st.integers(1, 14), st.floats(0.0, 1.0))
@settings(max_examples=150, deadline=None)
def test_the_short_way_to_a_1f1b_pipelines_time_is_the_longest_path_through_its_programs(stages, quota, transfer):
    programs = [one_f_one_b(s, len(stages), range(quota)) for s in range(len(stages))]
    timelines = run_programs(programs, lambda s, one: stages[s][one.op is Op.BACKWARD], transfer)
    expected = max(stage.end_seconds for stage in timelines)
    assert one_f_one_b_makespan(tuple(stages), quota, transfer) == pytest.approx(expected, rel=1e-9)


@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=4),
    st.lists(st.integers(250, 400), min_size=2, max_size=3),
    st.floats(0.0, 1.0),
    st.sampled_from(["1f1b", "zb-h1"]),
)
@settings(max_examples=30, deadline=None)
def test_hundreds_of_micro_batches_are_leapt_over_and_whatever_was_asked_before_the_end_is_that_of_the_programs(
    stages, quotas, transfer, schedule
):
    def makespan(quota):
        if schedule == "1f1b":
            return one_f_one_b_makespan(tuple((f, b + w) for f, b, w in stages), quota, transfer)
        return split_makespan(tuple(stages), quota, transfer, schedule)

    def seconds_of(stage, one):
        forward, of_input, of_weights = stages[stage]
        whole = {Op.FORWARD: forward, Op.BACKWARD: of_input + of_weights, Op.BACKWARD_INPUT: of_input}
        return whole.get(one.op, of_weights)

    alone = {}
    for quota in quotas:
        forget_runs()
        forget_split_runs()
        alone[quota] = makespan(quota)
    assert {quota: makespan(quota) for quota in sorted(quotas)} == alone
    programs = [SCHEDULES[schedule](s, len(stages), range(quotas[0])) for s in range(len(stages))]
    timelines = run_programs(programs, seconds_of, transfer)
    assert alone[quotas[0]] == pytest.approx(max(stage.end_seconds for stage in timelines), rel=1e-9)


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
