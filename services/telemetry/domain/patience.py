"""How long frames wait for ranks, and when a job has started over. Pure: the time is passed in."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRules:
    """When to stop waiting.

    Attributes:
        least_patience_seconds: A frame is open at least so long, from its first row, before its time is over.
        patience_iterations: The same in iterations of the job; the longer of the two counts.
        most_patience_seconds: Upper limit of both.
        grace_seconds: How long a frame of an older epoch stays open once a newer epoch has begun.
        max_open_frames: More than so many are not open, except
        max_open_rows: as many as hold so many rows when they are whole: after an outage ranks send what they kept
            one after the other.
        max_missed: A rank that missed so many frames in a row is listed as missing, but no longer waited for.
        lost_iterations: After so many iterations all of which are older than the newest closed frame,
        lost_seconds: and so long without any in time, the job is taken to have started over (or its numbering
            to have been spoiled): joining begins anew.
    """

    least_patience_seconds: float = 0.5
    patience_iterations: float = 2.0
    most_patience_seconds: float = 120.0
    grace_seconds: float = 0.25
    max_open_frames: int = 8
    max_open_rows: int = 4096
    max_missed: int = 3
    lost_iterations: int = 20
    lost_seconds: float = 10.0


class Patience:
    """The pace of one job, and what follows from it."""

    def __init__(self, rules: FrameRules) -> None:
        """Starts without a pace."""
        self._rules = rules
        self.iteration_seconds = 0.0
        self._num_late, self._newest_late = 0, (-1, -1)
        self._joined_at_seconds = 0.0

    @property
    def seconds(self) -> float:
        """How long a frame is open at most."""
        return self.seconds_at(self.iteration_seconds)

    def seconds_at(self, iteration_seconds: float) -> float:
        """The same at a pace."""
        rules = self._rules
        return min(
            max(rules.least_patience_seconds, rules.patience_iterations * iteration_seconds),
            rules.most_patience_seconds,
        )

    def learn(self, longest_seconds: Iterable[float]) -> None:
        """Frames closed, in which the slowest ranks took so long."""
        for longest in longest_seconds:
            if self.iteration_seconds == 0:
                self.iteration_seconds = longest
            else:  # follows within a few iterations; one long pause counts for four at most
                clipped = min(longest, 4 * self.iteration_seconds)
                self.iteration_seconds += 0.2 * (clipped - self.iteration_seconds)

    def joined(self, now_seconds: float) -> None:
        """Something came in time."""
        self._num_late, self._newest_late = 0, (-1, -1)
        self._joined_at_seconds = now_seconds

    def late(self, keys: Iterable[tuple[int, int]]) -> None:
        """Rows of these (epoch, iteration), ascending, came after their frames were closed."""
        for key in keys:
            if key > self._newest_late:  # the same one over and over is a repetition, not a job that goes on
                self._newest_late = key
                self._num_late += 1

    def is_lost(self, now_seconds: float) -> bool:
        """Whether so much was late, and for so long, that the frames must begin anew."""
        in_time = self._num_late < self._rules.lost_iterations
        return not in_time and now_seconds - self._joined_at_seconds >= self._rules.lost_seconds
