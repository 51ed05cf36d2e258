"""Where a series of iterations was restarted: what follows may warm up for a while.

A run that was restarted goes back to the number of a checkpoint, leaves numbers out as it never did, or stood still.
"""

import math

_TIMES_OF_A_RESTART = 10.0
_ITERATIONS_BETWEEN_STOPS = 256
_STEPS_OF_A_GAP = 20


class Restarts:
    """Watches numbers and lengths of iterations.

    Args:
        num_to_settle: Iterations that may warm up.
    """

    __slots__ = ("_newest", "_num_since_stop", "_num_to_settle", "_smallest_step", "num_left")

    def __init__(self, num_to_settle: int) -> None:
        self._num_to_settle = num_to_settle
        self._newest = -math.inf
        self._smallest_step = math.inf
        self._num_since_stop = _ITERATIONS_BETWEEN_STOPS
        self.num_left = 0
        """Iterations that may still warm up; 0 for settled."""

    def look_at_number(self, iteration: int, *, slow: bool) -> None:
        """Takes the number of the next iteration, planned pauses included; ``slow`` while a slow verdict stands."""
        step, self._newest = iteration - self._newest, iteration
        if step <= 0:
            self.num_left = self._num_to_settle
            return
        if step >= _STEPS_OF_A_GAP * self._smallest_step:
            self._may_have_restarted(slow=slow)
        self._smallest_step = min(self._smallest_step, step)

    def look_at_length(self, apart: float, *, slow: bool) -> None:
        """Takes how much longer than expected it was, log units: where one often stands still, that is no restart."""
        self._num_since_stop += 1
        if apart > math.log(_TIMES_OF_A_RESTART):
            if self._num_since_stop > _ITERATIONS_BETWEEN_STOPS:
                self._may_have_restarted(slow=slow)
            self._num_since_stop = 0

    def settle(self) -> None:
        """One more iteration has been run."""
        self.num_left = max(self.num_left - 1, 0)

    def _may_have_restarted(self, *, slow: bool) -> None:
        # Gaps that come again and again must not put a verdict off for ever.
        if not slow and self.num_left == 0:
            self.num_left = self._num_to_settle
