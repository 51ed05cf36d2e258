"""Which operations are stamped, and how groups are named."""

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.ranks.traffic import MAX_STAMPS, group_number, stamped_indices


@given(st.integers(0, 5000))
def test_the_first_and_the_last_operation_are_told_and_never_more_than_the_limit(count):
    chosen = stamped_indices(count)
    assert len(chosen) == min(count, MAX_STAMPS)
    assert list(chosen) == sorted(set(chosen))
    assert not count or (chosen[0], chosen[-1]) == (0, count - 1)


def test_a_groups_number_does_not_depend_on_the_order_of_its_ranks() -> None:
    assert group_number((3, 1, 2)) == group_number((1, 2, 3)) != group_number((1, 2))
    assert 0 <= group_number(range(1000)) < 2**32
