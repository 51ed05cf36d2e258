from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.planning.one_f_one_b import forget_runs, one_f_one_b_makespan
from services.scheduler.planning.pipeline_bound import least_one_f_one_b
from services.scheduler.planning.split_climb import climbed

SECONDS = st.floats(0.01, 5.0)


@given(st.lists(SECONDS, min_size=1, max_size=8), st.floats(0.1, 0.9), st.integers(1, 20), st.floats(0.0, 0.5))
@settings(max_examples=200, deadline=None)
def test_no_pipeline_is_faster_than_its_closed_form_says(stages, part, quota, transfer):
    pairs = tuple((part * each, (1.0 - part) * each) for each in stages)
    least, _ = least_one_f_one_b(stages, part, quota, transfer)
    assert least <= one_f_one_b_makespan(pairs, quota, transfer) * (1.0 + 1e-9)


@given(st.integers(1, 8), st.integers(1, 24))
def test_for_equal_stages_the_closed_form_is_exact(num_stages, quota):
    least, _ = least_one_f_one_b([3.0] * num_stages, 1.0 / 3.0, quota, 0.0)
    assert least == pytest.approx((quota + num_stages - 1) * 3.0)


@pytest.mark.parametrize("seed", range(5))
def test_for_unequal_stages_it_is_mostly_within_a_thousandth(seed):
    factors = [1.0 + 0.2 * (((7 * s + 3 * seed) % 11) / 10.0 - 0.5) for s in range(16)]
    exact = one_f_one_b_makespan(tuple((0.1 * f, 0.2 * f) for f in factors), 32, 0.0)
    least, _ = least_one_f_one_b([0.3 * f for f in factors], 1.0 / 3.0, 32, 0.0)
    assert least > 0.985 * exact


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), st.lists(st.integers(1, 40), min_size=2))
@settings(max_examples=80, deadline=None)
def test_the_order_in_which_quotas_are_asked_for_changes_no_answer(stages, quotas):
    def alone(quota):
        forget_runs()
        return one_f_one_b_makespan(tuple(stages), quota, 0.1)

    expected = [alone(quota) for quota in quotas]
    forget_runs()
    assert [one_f_one_b_makespan(tuple(stages), quota, 0.1) for quota in quotas] == pytest.approx(expected, rel=1e-12)


@given(
    st.lists(st.floats(0.2, 1.0), min_size=2, max_size=5),
    st.integers(6, 16),
    st.integers(1, 16),
    st.floats(0.0, 0.2),
    st.data(),
)
@settings(max_examples=80, deadline=None)
def test_climbing_keeps_every_block_and_never_makes_a_split_slower_by_the_closed_form(
    speeds, num_blocks, quota, transfer, data
):
    inner = sorted(
        data.draw(st.sets(st.integers(1, num_blocks - 1), min_size=len(speeds) - 1, max_size=len(speeds) - 1))
    )
    prefix = [[b / speed for b in range(num_blocks + 1)] for speed in speeds]

    def least(borders):
        parts = [p[b] - p[a] for p, (a, b) in zip(prefix, pairwise((0, *borders, num_blocks)), strict=True)]
        return least_one_f_one_b(parts, 1.0 / 3.0, quota, transfer)[0]

    seconds, found = climbed(prefix, inner, 1.0 / 3.0, quota, transfer)
    assert all(a < b for a, b in pairwise((0, *found, num_blocks)))
    assert seconds == pytest.approx(least(found))
    assert seconds <= least(inner) + 1e-12
