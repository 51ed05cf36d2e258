"""The time of one partition: what its broker noted on the records, and what it said since. Pure.

So a service that is behind with its work takes no time of its own for the ranks' delay: until it has read what came
when, that time has not begun. Where nothing more is there, time goes on as far as the broker has said so.
"""

from collections.abc import Iterable
from typing import NamedTuple

CUT_SECONDS = 1.5
"""Ranks report more often: in a longer time between two records of a partition nobody could be heard, whoever spoke."""
UNANSWERED_SECONDS = 5.0
"""A service looks more often whether the broker has answered, however starved: for longer there was no answer."""


class Cut(NamedTuple):
    """A time in which nothing could be heard.

    Attributes:
        until_seconds: Its end.
        seconds: Its length.
    """

    until_seconds: float
    seconds: float


class PartitionClock:
    """Unix seconds of the broker; 0 before the first record."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self._newest_seconds = 0.0
        self._read_at_seconds = 0.0

    def read(self, appended_at_seconds: Iterable[float], read_at_seconds: float) -> Cut | None:
        """Records were read.

        Args:
            appended_at_seconds: When the broker got each, in order, by its clock.
            read_at_seconds: When they were read, by ours.

        Returns:
            A cut before one of them, if there was any: the end of the last one, and how long all were.
        """
        last, lost_seconds = None, 0.0
        for appended_seconds in appended_at_seconds:
            cut = self._go_on(appended_seconds, CUT_SECONDS)
            if cut is not None:
                last, lost_seconds = cut, lost_seconds + cut.seconds
            self._newest_seconds = appended_seconds
        self._read_at_seconds = read_at_seconds
        return last and last._replace(seconds=lost_seconds)

    def nothing_more(self, until_seconds: float) -> Cut | None:
        """The broker has said that there was nothing behind what was read, up to this time by our clock."""
        if not self.now_seconds:
            return None
        return self._go_on(self._newest_seconds + until_seconds - self._read_at_seconds, UNANSWERED_SECONDS)

    def _go_on(self, to_seconds: float, longest_seconds: float) -> Cut | None:
        passed_seconds = to_seconds - self.now_seconds if self.now_seconds else 0.0
        self.now_seconds = max(self.now_seconds, to_seconds)
        return Cut(to_seconds, passed_seconds) if passed_seconds > longest_seconds else None
