"""When a rank whose process has ended gets a new one."""

import threading
import time
from collections.abc import Callable

QUICK_FAILURE_SECONDS = 5.0
_LEAST_BACK_OFF_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 30.0


class Restarts:
    """Restarts that are due later, or at a process's end. A timer thread exists only while one is due.

    Whoever calls holds the launcher's lock, and ``on_due``, which is called without it, takes it.

    Args:
        delay_seconds: From a failure to the restart; None = nobody is restarted unless somebody asks for it.
        on_due: Called with a rank on a timer's thread; :meth:`take` says whether it is still to be restarted.
    """

    def __init__(self, delay_seconds: float | None, on_due: Callable[[int], None]) -> None:
        self._delay_seconds = delay_seconds
        self._on_due = on_due
        self._started_at: dict[int, float] = {}
        self._quick_failures: dict[int, int] = {}
        self._timers: dict[int, threading.Timer] = {}
        self._at_exit: set[int] = set()

    @property
    def are_due(self) -> bool:
        """Whether somebody is to be restarted later."""
        return bool(self._timers)

    def forked(self, rank: int) -> None:
        """The rank has a process."""
        self._started_at[rank] = time.monotonic()

    def await_exit(self, rank: int) -> None:
        """Restart the rank at its process's end, which somebody sees to."""
        self._at_exit.add(rank)

    def failed(self, rank: int, *, ends: bool) -> bool:
        """The rank's process ended before its work was done.

        Args:
            rank: Whose process it was.
            ends: The job is about to end: only who was asked for is restarted.

        Returns:
            True when it is to be restarted now; else it may be due later.
        """
        if rank in self._at_exit:
            self._at_exit.discard(rank)
            return True
        if self._delay_seconds is None or ends:
            return False
        lived_seconds = time.monotonic() - self._started_at.get(rank, 0.0)
        quick = self._quick_failures.get(rank, 0) + 1 if lived_seconds < QUICK_FAILURE_SECONDS else 0
        self._quick_failures[rank] = quick
        timer = threading.Timer(backed_off_seconds(self._delay_seconds, quick), self._on_due, (rank,))
        timer.daemon = True
        self._timers[rank] = timer
        timer.start()
        return False

    def take(self, rank: int) -> bool:
        """Whether a restart of the rank was due; it is no more."""
        return self._timers.pop(rank, None) is not None

    def cancel(self, rank: int) -> None:
        """The rank is not restarted later."""
        timer = self._timers.pop(rank, None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        """Nobody is restarted later."""
        for rank in list(self._timers):
            self.cancel(rank)


def backed_off_seconds(delay_seconds: float, num_quick_failures: int) -> float:
    """The delay of a restart: one that dies at once every time must not keep the machine busy."""
    if num_quick_failures <= 1:
        return delay_seconds
    return min(max(delay_seconds, _LEAST_BACK_OFF_SECONDS) * 2.0 ** (num_quick_failures - 1), _LONGEST_DELAY_SECONDS)
