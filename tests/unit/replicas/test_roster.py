"""The epochs that follow from the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.replicas.membership.passage import Passage
from evenkeel.trainer_sdk.replicas.membership.roster import (
    Again,
    Entry,
    Gone,
    Quotas,
    Ready,
    Roster,
    entry_from_text,
    entry_to_text,
)


def ready(replica: int, token: str = "", num_replicas: int = 0) -> Ready:
    return Ready(replica=replica, token=token or f"t{replica}", lines=("host:1",), num_replicas=num_replicas)


def gone(replica: int, token: str = "", standing: str = "", *, finished: bool = False) -> Gone:
    return Gone(replica=replica, token=token or f"t{replica}", why="it ended", standing=standing, finished=finished)


def roster_of(num_replicas: int, *entries: Entry) -> Roster:
    roster = Roster(num_replicas)
    for entry in entries:
        roster.apply(entry)
    return roster


def members(roster: Roster) -> list[tuple[int, str, bool]] | None:
    epoch = roster.epoch
    return epoch and [(each.replica, each.token, each.founds) for each in epoch.members]


def test_a_job_begins_when_all_are_there() -> None:
    roster = roster_of(2, ready(1))
    assert roster.epoch is None
    roster.apply(ready(0))
    assert members(roster) == [(0, "t0", True), (1, "t1", True)]
    assert roster.newest_abrupt == 1


@pytest.mark.parametrize("told", [(2, 3, 3), (4, 3, 3), (3, 3, 4), (3, 2, 2)])
def test_who_was_told_another_number_of_replicas_reads_the_same_epochs(told: tuple[int, ...]) -> None:
    entries = [ready(replica, num_replicas=number) for replica, number in enumerate(told)]
    rosters = [roster_of(number, *entries) for number in told]
    assert len({str(each.epochs) for each in rosters}) == 1
    assert {each.num_replicas for each in rosters} == {told[-1]}


def test_a_death_does_not_wait_for_a_border_and_a_joiner_does() -> None:
    roster = roster_of(2, ready(0), ready(1), gone(1))
    assert members(roster) == [(0, "t0", True)]
    assert roster.newest_abrupt == roster.epoch.number == 2
    roster.apply(ready(1, "new"))
    assert members(roster) == [(0, "t0", True), (1, "new", False)]
    assert (roster.epoch.number, roster.newest_abrupt) == (3, 2)


def test_a_process_that_takes_a_living_ones_place_ends_it() -> None:
    roster = roster_of(2, ready(0), ready(1), ready(1, "new"))
    assert "t1" in roster.gone
    assert roster.newest_abrupt == roster.epoch.number == 2


def test_who_counts_as_gone_never_comes_back() -> None:
    roster = roster_of(2, ready(0), ready(1), gone(1), ready(1))
    assert members(roster) == [(0, "t0", True)]


def test_when_nobody_is_left_the_job_begins_anew() -> None:
    roster = roster_of(1, ready(0), gone(0))
    assert roster.epoch is None
    roster.apply(ready(0, "new"))
    assert members(roster) == [(0, "new", True)]
    assert roster.epoch.number == roster.newest_abrupt > 2


def way(roster: Roster, token: str, entered: int = 0, newest: int = 0) -> int | None:
    """Where a process goes that has entered an epoch, and at whose last border everybody knew of the newest one."""
    passage = Passage()
    passage.enter(entered)
    passage.agree(newest or entered)
    epoch = passage.next_epoch(roster, token)
    return epoch and epoch.number


def test_whoever_has_read_more_goes_where_the_others_go() -> None:
    roster = roster_of(2, ready(0), ready(1), ready(2), ready(3))
    assert way(roster, "t0", 1) is None
    assert [way(roster, f"t{each}") for each in (2, 3)] == [2, 3]
    assert way(roster, "t0", 1, newest=2) == 2
    roster.apply(gone(1))
    assert {way(roster, f"t{each}", 1) for each in (0, 2, 3)} == {4}
    roster.apply(ready(1, "new"))
    assert way(roster, "t0", 1) == 4
    assert way(roster, "new") == 5
    assert way(roster, "t1") is None


def test_groups_are_built_again_once() -> None:
    roster = roster_of(2, ready(0), ready(1), Again(epoch=1, why="broken"), Again(epoch=1, why="broken"))
    assert roster.epoch.number == 2


def test_one_who_waits_for_a_border_does_not_keep_an_epoch_that_broke() -> None:
    roster = roster_of(2, ready(0), ready(1), ready(2), Again(epoch=1, why="broken"))
    assert members(roster) == [(0, "t0", True), (1, "t1", True), (2, "t2", False)]
    assert roster.epoch.number == roster.newest_abrupt == 3


def test_newcomers_without_anybody_to_ask_begin_anew_when_all_are_there() -> None:
    roster = roster_of(2, ready(0), ready(1), ready(0, "new"), gone(1), Again(epoch=3, why="lost", anew=True))
    assert roster.epoch is None
    roster.apply(ready(1, "new"))
    assert members(roster) == [(0, "new", True), (1, "new", True)]
    assert roster.newest_abrupt == roster.epoch.number > 4


def test_what_somebody_left_behind_stays() -> None:
    roster = roster_of(3, ready(0), ready(1), ready(2), gone(1, standing="said"), gone(2))
    assert roster.epoch.left == ("said",)


def test_a_plan_shares_out_among_those_that_are_there_at_the_end_of_a_step() -> None:
    plan = Quotas(plan=7, weights=((0, 6), (2, 2)))
    roster = roster_of(3, ready(0), ready(1), ready(2), plan, Quotas(plan=6, weights=((0, 1),)), plan)
    assert [each.weight for each in roster.epoch.members] == [6, 0, 2]
    assert (roster.epoch.number, roster.epoch.plan, roster.newest_abrupt) == (2, 7, 1)
    roster.apply(gone(2))
    roster.apply(ready(2, "new"))
    assert [each.weight for each in roster.epoch.members] == [6, 0, 3], "who comes later works as others do"


def test_a_plan_that_comes_before_the_job_begins_counts_then() -> None:
    roster = roster_of(2, ready(0), Quotas(plan=1, weights=((0, 3), (1, 1))), ready(1))
    assert [(each.replica, each.weight) for each in roster.epoch.members] == [(0, 3), (1, 3)]


ENTRIES = st.lists(
    st.one_of(
        st.builds(
            lambda replica, token: ready(replica, f"{replica}{token}"), st.integers(0, 3), st.sampled_from("abc")
        ),
        st.builds(lambda replica, token: gone(replica, f"{replica}{token}"), st.integers(0, 3), st.sampled_from("abc")),
        st.builds(Again, epoch=st.integers(0, 9), why=st.just("broken"), anew=st.booleans()),
        st.builds(Quotas, plan=st.integers(1, 9), weights=st.just(((0, 2), (2, 1)))),
    ),
    max_size=30,
)


@given(ENTRIES)
def test_epochs_only_grow_and_hold_nobody_who_is_gone(entries: list[Entry]) -> None:
    roster, last = Roster(2), 0
    for entry in entries:
        before = roster.epoch
        roster.apply(entry)
        epoch = roster.epoch
        if epoch is None:
            assert roster.newest_abrupt >= last, "whoever trained leaves off"
            continue
        assert epoch.members
        assert not {each.token for each in epoch.members} & set(roster.gone)
        assert [each.replica for each in epoch.members] == sorted({each.replica for each in epoch.members})
        assert epoch.number >= last
        assert roster.newest_abrupt <= epoch.number
        assert epoch is before or epoch.number > last
        assert roster.epochs[epoch.number] is epoch
        last = epoch.number


@given(ENTRIES)
def test_saying_a_thing_twice_changes_nothing(entries: list[Entry]) -> None:
    once, twice = Roster(2), Roster(2)
    for entry in entries:
        once.apply(entry)
        twice.apply(entry)
        twice.apply(entry)
        if not isinstance(entry, Again):
            assert once.epoch == twice.epoch or any(isinstance(each, Again) for each in entries)


@given(ENTRIES)
def test_an_entry_is_read_as_it_was_written(entries: list[Entry]) -> None:
    for entry in entries:
        assert entry_from_text(entry_to_text(entry)) == entry


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "ready"}', '{"kind": "stranger"}', "1"])
def test_what_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no entry"):
        entry_from_text(text)


@pytest.mark.parametrize("finished", [True, False])
def test_the_job_has_finished_when_nobody_trains_and_some_had_come_to_its_end(finished: bool) -> None:
    roster = roster_of(2, ready(0), ready(1), gone(0, finished=finished))
    assert not roster.finished, "one still trains"
    roster.apply(gone(1))
    assert roster.finished is finished
    roster.apply(ready(0, "again"))
    assert roster.finished is finished, "alone it begins nothing"
    roster.apply(ready(1, "again"))
    assert not roster.finished
    assert members(roster) == [(0, "again", True), (1, "again", True)]


def test_a_newcomer_that_is_let_in_when_the_others_have_finished_has_nobody_to_ask() -> None:
    roster = roster_of(2, ready(0), ready(1), gone(1), ready(1, "new"), gone(0, finished=True))
    assert roster.epoch is not None
    roster.apply(Again(epoch=roster.epoch.number, why="nobody holds the state", anew=True))
    assert roster.finished
    assert roster.epoch is None
