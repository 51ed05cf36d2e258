from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.ranks.spread import spread_micro_batches


def layout_of(quotas: list[int]) -> Layout:
    layout = uniform_layout(num_blocks=2, tensor=1, pipeline=1, data=len(quotas), num_micro_batches=len(quotas))
    replicas = zip(layout.replicas, quotas, strict=True)
    return replace(layout, replicas=tuple(replace(replica, num_micro_batches=quota) for replica, quota in replicas))


@given(quotas=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), data=st.data())
def test_each_index_goes_to_one_replica_and_no_other_split_is_shorter(quotas: list[int], data: st.DataObject) -> None:
    indices = data.draw(st.sets(st.integers(0, sum(quotas) - 1)))
    shares = spread_micro_batches(layout_of(quotas), indices)
    assert sorted(index for share in shares for index in share) == sorted(indices)
    assert all(list(share) == sorted(share) for share in shares)
    assert not any(share for share, quota in zip(shares, quotas, strict=True) if not quota)
    able = [(len(share), quota) for share, quota in zip(shares, quotas, strict=True) if quota]
    longest = max(Fraction(count, quota) for count, quota in able)
    assert all(Fraction(count + 1, quota) >= longest for count, quota in able), "one could take from the longest"


def test_everything_is_spread_as_the_layout_has_it() -> None:
    assert spread_micro_batches(layout_of([3, 1, 2]), range(6)) == ((0, 1, 2), (3,), (4, 5))


def test_what_stays_where_it_was_moves_only_for_balance() -> None:
    assert spread_micro_batches(layout_of([4, 4]), {0, 1, 2, 6}) == ((0, 1), (2, 6))


def test_an_unknown_index_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[4\]: the layout has 0 to 3"):
        spread_micro_batches(layout_of([2, 2]), {1, 4})


def test_a_large_replica_takes_two_more_where_one_would_be_all_of_a_small_ones_quota() -> None:
    assert spread_micro_batches(layout_of([1, 1, 6]), {0, 1, 2, 3, 4}) == ((), (), (0, 1, 2, 3, 4))
