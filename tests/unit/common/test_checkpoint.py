import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.common.kafka.checkpoint import Checkpoint
from evenkeel.services.common.kafka.records import Partition

HERE, THERE = Partition("topic", 0), Partition("topic", 1)


def checkpoint() -> Checkpoint:
    ours = Checkpoint(interval_seconds=1.0, max_records=10)
    ours.begin({HERE: 0, THERE: 0})
    return ours


def test_it_is_due_after_a_time_or_a_number_of_records() -> None:
    pending = checkpoint()
    assert not pending.due(100.0)
    pending.handled(HERE, 3, num_records=3, now_seconds=100.0)
    assert not pending.due(100.9)
    assert pending.due(101.0)
    pending.handled(THERE, 7, num_records=7, now_seconds=100.1)
    assert pending.due(100.1)


def test_offsets_never_go_back() -> None:
    pending = checkpoint()
    pending.handled(HERE, 3, num_records=3, now_seconds=0.0)
    with pytest.raises(ValueError, match="went backwards"):
        pending.handled(HERE, 2, num_records=1, now_seconds=0.0)


def test_what_the_handler_holds_back_stays_pending() -> None:
    pending = checkpoint()
    pending.handled(HERE, 9, num_records=9, now_seconds=0.0)
    offsets = pending.to_commit({HERE: 4})
    assert offsets == {HERE: 4}
    pending.committed(offsets, 1.0)
    assert not pending.due(1.5)
    assert pending.due(2.0)
    pending.committed(pending.to_commit({HERE: 9}), 2.0)
    assert not pending.due(1e9)


def test_a_failed_commit_is_tried_again_after_an_interval() -> None:
    pending = checkpoint()
    pending.handled(HERE, 9, num_records=9, now_seconds=0.0)
    pending.postpone(1.0)
    assert not pending.due(1.9)
    assert pending.due(2.0)
    assert pending.to_commit({HERE: 9}) == {HERE: 9}


def test_a_partition_that_was_taken_away_is_not_committed() -> None:
    pending = checkpoint()
    pending.handled(HERE, 9, num_records=9, now_seconds=0.0)
    pending.drop([HERE])
    assert pending.to_commit({HERE: 9}) == {}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=30))
def test_a_commit_never_runs_ahead_of_what_was_handled_and_never_goes_back(
    steps: list[tuple[int, int, bool]],
) -> None:
    pending = checkpoint()
    handled = committed = 0
    for grow, allowed, works in steps:
        handled += grow
        pending.handled(HERE, handled, num_records=grow, now_seconds=0.0)
        offsets = pending.to_commit({HERE: allowed})
        assert offsets.get(HERE, handled) <= handled
        assert offsets.get(HERE, committed + 1) > committed
        if works:
            pending.committed(offsets, 0.0)
            committed = offsets.get(HERE, committed)
