"""Wall clock and monotonic clock read as one: stamps of the second become times of the first."""

import time
from collections.abc import Callable

_SMALLEST_GAP_SECONDS = 1e-5
_NUM_TRIES = 3


class WallClock:
    """Says which wall-clock time belongs to a moment of the monotonic clock.

    A process that loses its core between the two reads would be off by milliseconds, which is more than a transfer
    takes. So a pair of reads that lie apart is tried again, and after that the last good one is carried on.

    Args:
        wall: Unix seconds.
        monotonic: Monotonic seconds.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.perf_counter
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead_seconds: float | None = None

    def read(self) -> tuple[float, float]:
        """Now, in Unix seconds and in monotonic seconds."""
        for _ in range(_NUM_TRIES):
            before = self._monotonic()
            wall = self._wall()
            after = self._monotonic()
            if after - before < _SMALLEST_GAP_SECONDS:
                self._ahead_seconds = wall - before
                return wall, before
        if self._ahead_seconds is None:
            self._ahead_seconds = wall - before
        return before + self._ahead_seconds, before
