"""Levels of groups: everybody is heard once, nobody's group is wide, few levels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.ranks.levels import levels_of, path_of

RANKS = st.sets(st.integers(0, 10_000), min_size=1, max_size=300).map(lambda ranks: tuple(sorted(ranks)))


@given(RANKS, st.integers(2, 20))
def test_each_level_is_led_by_the_next_and_no_group_is_too_wide(ranks, widest):
    levels = levels_of(ranks, widest)
    members = ranks
    for groups in levels:
        assert tuple(rank for group in groups for rank in group) == members
        assert all(1 <= len(group) <= widest for group in groups)
        members = tuple(group[0] for group in groups)
    assert len(levels[-1]) == 1
    assert len(members) == 1
    assert len(levels[-1][0]) > 1 or len(ranks) == 1, "nobody meets alone at the top"
    assert len(levels) == 1 or widest ** (len(levels) - 1) < len(ranks), "one level less would do"


@given(RANKS, st.integers(2, 20))
def test_groups_of_a_level_differ_by_one_rank_and_no_level_has_wider_ones_than_the_first(ranks, widest):
    levels = levels_of(ranks, widest)
    sizes = [[len(group) for group in groups] for groups in levels]
    assert all(max(level) - min(level) <= 1 for level in sizes)
    assert max(map(max, sizes)) == max(sizes[0])


@given(RANKS, st.integers(2, 20))
def test_a_rank_leads_all_groups_of_its_path_but_the_last(ranks, widest):
    levels = levels_of(ranks, widest)
    for rank in ranks:
        path = path_of(levels, rank)
        assert all(group[0] == rank for group in path[:-1])
        assert rank in path[-1]
        assert len(path) == len(levels) or path[-1][0] != rank


def test_as_many_ranks_as_fit_into_one_group_have_one_level():
    assert levels_of(range(64), 64) == ((tuple(range(64)),),)
    assert len(levels_of(range(65), 64)) == 2


def test_98304_ranks_need_three_levels_of_at_most_47():
    levels = levels_of(range(98_304), 64)
    assert [max(map(len, groups)) for groups in levels] == [47, 46, 46]


def test_a_rank_that_does_not_meet_has_no_path():
    with pytest.raises(ValueError, match="rank 7 is not among the 3 ranks"):
        path_of(levels_of(range(3), 2), 7)
