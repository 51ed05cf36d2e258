import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.cut import cut

SHARES = st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(lambda shares: sum(shares) > 0)


@given(st.integers(1, 200), st.integers(1, 16), SHARES)
def test_shards_cover_the_axis_once_and_stay_within_a_granule_of_their_share(num_granules, granule, shares):
    size = num_granules * granule
    borders = cut(size, granule, shares)
    assert borders[0] == 0
    assert borders[-1] == size
    assert len(borders) == len(shares) + 1
    for shard, share in enumerate(shares):
        width = borders[shard + 1] - borders[shard]
        assert width >= 0
        assert width % granule == 0
        assert abs(width - size * share / sum(shares)) <= granule


@given(st.integers(1, 60), st.integers(1, 8))
def test_equal_shares_of_a_divisible_axis_are_equal(width, num_shards):
    borders = cut(width * num_shards, 1, [3] * num_shards)
    assert {stop - start for start, stop in itertools.pairwise(borders)} == {width}


@pytest.mark.parametrize(
    ("size", "granule", "shares", "complaint"),
    [
        (10, 3, [1], "granule 3"),
        (10, 0, [1], "granule 0"),
        (8, 2, [0, 0], "sum above 0"),
        (8, 2, [2, -1], "at least 0"),
    ],
)
def test_impossible_cuts_are_refused_with_the_reason(size, granule, shares, complaint):
    with pytest.raises(ValueError, match=complaint):
        cut(size, granule, shares)
