import math
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.planning.levers.balance.splits import climbed
from evenkeel.planning.pipelined.pipeline_bound import pipeline_bound
from tests.unit.planning.planning_cases import one_f_one_b_makespan, ranges_of

SECONDS = st.floats(0.01, 5.0)


def bound(stages, quota, forward_part, backward_part, transfer, limit=math.inf):
    parts = np.array([(0.0, seconds, 0.0) for seconds in stages])
    return pipeline_bound(parts, 0, 0.0, quota, forward_part, backward_part, transfer, limit)


def least_one_f_one_b(stages, part, quota, transfer):
    return bound(stages, quota, part, 1.0 - part, transfer)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8), st.integers(1, 20), st.floats(0.0, 0.5))
@settings(max_examples=200, deadline=None)
def test_no_pipeline_is_faster_than_its_closed_form_says(pairs, quota, transfer):
    parts = [forward / (forward + backward) for forward, backward in pairs]
    whole = np.array([sum(pair) for pair in pairs])
    least, slowest = bound(whole, quota, max(parts), 1.0 - min(parts), transfer)
    assert least <= one_f_one_b_makespan(pairs, quota, transfer) * (1.0 + 1e-9)
    round_trips = 2.0 * transfer * (len(pairs) - 1)
    assert quota * whole[slowest] <= least <= quota * whole[slowest] + 2.0 * (sum(whole) + round_trips)
    assert bound(whole, quota, max(parts), 1.0 - min(parts), transfer, 0.5 * least)[0] >= 0.5 * least


@given(st.integers(1, 8), st.integers(1, 24))
def test_for_equal_stages_the_closed_form_is_exact(num_stages, quota):
    least, _ = least_one_f_one_b([3.0] * num_stages, 1.0 / 3.0, quota, 0.0)
    assert least == pytest.approx((quota + num_stages - 1) * 3.0)


@pytest.mark.parametrize("seed", range(5))
def test_for_unequal_stages_it_is_mostly_within_a_thousandth(seed):
    factors = [1.0 + 0.2 * (((7 * s + 3 * seed) % 11) / 10.0 - 0.5) for s in range(16)]
    exact = one_f_one_b_makespan([(0.1 * f, 0.2 * f) for f in factors], 32, 0.0)
    least, _ = least_one_f_one_b([0.3 * f for f in factors], 1.0 / 3.0, 32, 0.0)
    assert least > 0.985 * exact


@given(
    st.lists(st.floats(0.2, 1.0), min_size=2, max_size=5),
    st.integers(6, 16),
    st.integers(1, 16),
    st.floats(0.0, 0.2),
    st.data(),
)
@settings(max_examples=80, deadline=None)
def test_climbing_keeps_every_block_and_ends_where_no_block_of_the_slowest_stage_is_better_off_elsewhere(
    speeds, num_blocks, quota, transfer, data
):
    inner = sorted(
        data.draw(st.sets(st.integers(1, num_blocks - 1), min_size=len(speeds) - 1, max_size=len(speeds) - 1))
    )
    prefix = np.array([[b / speed for b in range(num_blocks + 1)] for speed in speeds])
    given = np.array([0, *inner, num_blocks])

    def least(borders):
        parts = [p[b] - p[a] for p, (a, b) in zip(prefix, pairwise((0, *borders, num_blocks)), strict=True)]
        return least_one_f_one_b(parts, 1.0 / 3.0, quota, transfer)

    seconds, found = climbed(ranges_of(prefix), given, quota, 1.0 / 3.0, transfer)
    assert given.tolist() == [0, *inner, num_blocks]
    again, slowest = least(found[1:-1])
    assert seconds == pytest.approx(again)
    assert seconds <= least(inner)[0] + 1e-12
    counts = [b - a for a, b in pairwise(found.tolist())]
    assert min(counts) > 0
    for taker in range(len(speeds)):
        moved = [count + (s == taker) - (s == slowest) for s, count in enumerate(counts)]
        if min(moved) > 0:
            assert least([*accumulate(moved)][:-1])[0] >= seconds * (1.0 - 1e-8)
