import queue

import pytest

from evenkeel.trainer_sdk.launcher.processes.restarts import Restarts, backed_off_seconds


@pytest.fixture
def due() -> "queue.Queue[int]":
    return queue.Queue()


def test_a_rank_that_failed_is_due_once(due: "queue.Queue[int]") -> None:
    restarts = Restarts(0.0, due.put)
    restarts.forked(3)
    assert not restarts.failed(3, ends=False)
    assert restarts.are_due
    assert due.get(timeout=100) == 3
    assert restarts.take(3)
    assert not restarts.take(3)
    assert not restarts.are_due


def test_what_is_cancelled_is_not_due(due: "queue.Queue[int]") -> None:
    restarts = Restarts(1000.0, due.put)
    for rank in range(3):
        restarts.failed(rank, ends=False)
    restarts.cancel(1)
    assert not restarts.take(1)
    assert restarts.are_due
    restarts.cancel_all()
    assert not restarts.are_due


@pytest.mark.parametrize(("delay_seconds", "ends"), [(None, False), (0.0, True)])
def test_where_nobody_is_restarted_only_who_was_asked_for_is(
    due: "queue.Queue[int]", delay_seconds: float | None, ends: bool
) -> None:
    restarts = Restarts(delay_seconds, due.put)
    assert not restarts.failed(0, ends=ends)
    assert not restarts.are_due
    restarts.await_exit(0)
    assert restarts.failed(0, ends=ends)
    assert not restarts.failed(0, ends=ends)


def test_one_that_dies_at_once_every_time_waits_longer_and_longer_up_to_half_a_minute() -> None:
    assert [backed_off_seconds(2.0, failures) for failures in range(8)] == [2, 2, 4, 8, 16, 30, 30, 30]
    assert [backed_off_seconds(0.0, failures) for failures in range(4)] == [0, 0, 0.2, 0.4]
