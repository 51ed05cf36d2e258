"""Unix seconds by which durations are right, whatever is done to the machine's clock."""

import time
from collections.abc import Callable

import structlog

_MOST_GAIN = 1 / 16
"""Part of the time that passes by which the clock may be brought in line: a duration is never off by more."""
_TOLD_SECONDS = 0.5
_IN_LINE_SECONDS = 0.1

_log = structlog.get_logger(__name__)


class SteadyClock:
    """The machine's clock, without its jumps.

    A clock that is set (by hand, by NTP, after a machine was suspended) would make an hour of silence of nothing, or
    end something before it began. This one goes on at the pace of time and is brought in line slowly: a step of 2 s
    in half a minute. Never goes back. Belongs to one thread.

    Args:
        wall: Unix seconds.
        monotonic: Monotonic seconds.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._read_at_seconds = monotonic()
        self._now_seconds = wall()
        self._told = False

    def __call__(self) -> float:
        """Unix seconds."""
        read_at_seconds = self._monotonic()
        passed_seconds = read_at_seconds - self._read_at_seconds
        ahead_seconds = self._now_seconds + passed_seconds - self._wall()
        most_seconds = passed_seconds * _MOST_GAIN
        self._read_at_seconds = read_at_seconds
        self._now_seconds += passed_seconds - min(max(ahead_seconds, -most_seconds), most_seconds)
        self._tell(ahead_seconds)
        return self._now_seconds

    def _tell(self, ahead_seconds: float) -> None:
        """One line in the log when the machine's clock was set, and one when this one agrees with it again."""
        if abs(ahead_seconds) > _TOLD_SECONDS and not self._told:
            self._told = True
            _log.warning(
                "the clock of this machine was set: times in here follow slowly",
                set_by_seconds=round(-ahead_seconds, 3),
            )
        elif abs(ahead_seconds) < _IN_LINE_SECONDS and self._told:
            self._told = False
            _log.info("times agree with the clock of this machine again")
