"""How often a consumer's partitions are dealt out: again and again means that somebody takes its place."""

from collections import deque

WINDOW_SECONDS = 60.0
# A rolling restart of a few instances deals partitions out some times a minute; two processes with one id, each second.
MOST_IN_WINDOW = 10


class AssignmentPace:
    """Counts assignments of one consumer and says when they are too many. Pure: the caller has the clock."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def too_many(self, now_seconds: float) -> bool:
        """Takes an assignment; true for the one that makes too many in the window, which begins anew then."""
        self._times.append(now_seconds)
        while now_seconds - self._times[0] > WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) <= MOST_IN_WINDOW:
            return False
        self._times.clear()
        return True
