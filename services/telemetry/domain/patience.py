"""How long frames wait for ranks, and when a job has started over. Pure: the time is passed in."""

from collections.abc import Iterable

# A frame is open at least so long from its first row, or for so many iterations of the job if that is longer.
_LEAST_SECONDS, _ITERATIONS, _MOST_SECONDS = 0.5, 2.0, 120.0
# After so many iterations all of which are older than the newest closed frame, and so long without any in time, the job
# is taken to have started over, or its numbering to have been spoiled: joining begins anew.
_LOST_ITERATIONS, _LOST_SECONDS = 20, 10.0


class Patience:
    """The pace of one job, and what follows from it."""

    def __init__(self) -> None:
        self.iteration_seconds = 0.0
        self._num_late, self._newest_late = 0, (-1, -1)
        self._joined_at_seconds = 0.0

    @property
    def seconds(self) -> float:
        """How long a frame is open at most."""
        return self.seconds_at(self.iteration_seconds)

    def seconds_at(self, iteration_seconds: float) -> float:
        """The same at a pace."""
        return min(max(_LEAST_SECONDS, _ITERATIONS * iteration_seconds), _MOST_SECONDS)

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
        in_time = self._num_late < _LOST_ITERATIONS
        return not in_time and now_seconds - self._joined_at_seconds >= _LOST_SECONDS
