"""Where a series of iterations was restarted: what follows may warm up for a while.

A run that was restarted goes back to the number of a checkpoint, leaves numbers out as it never did, or stood still.
"""

import math

import numpy as np

from evenkeel.numeric.arrays import Floats

_TIMES_OF_A_RESTART = 10.0
_ITERATIONS_BETWEEN_STOPS = 256
_STEPS_OF_A_GAP = 20
# What becomes shorter by so much from one third of the time since a restart to the next still warms up.
_STILL_FALLING = 0.88
# Twice the standard deviation of the difference of two medians, of one value over the root of their number.
_SPREAD_OF_MEDIANS = 2 * math.sqrt(2 * math.pi / 2)


class Restarts:
    """Watches numbers and lengths of iterations.

    Args:
        num_to_settle: Iterations that may warm up.
    """

    __slots__ = ("_newest", "_num_since_stop", "_num_to_settle", "_smallest_step", "num_left", "num_since")

    def __init__(self, num_to_settle: int) -> None:
        self._num_to_settle = num_to_settle
        self._newest = -math.inf
        self._smallest_step = math.inf
        self._num_since_stop = _ITERATIONS_BETWEEN_STOPS
        self.num_left = 0
        """Iterations that may still warm up; 0 for settled."""
        self.num_since = 0
        """Iterations since the newest restart."""

    def look_at_number(self, iteration: int, *, slow: bool) -> None:
        """Takes the number of the next iteration, planned pauses included; ``slow`` while a slow verdict stands."""
        step, self._newest = iteration - self._newest, iteration
        if step <= 0:
            self.num_left, self.num_since = self._num_to_settle, 0
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
        self.num_since += 1

    def settling(self, residuals: Floats, *, scale: float) -> bool:
        """The newest restart is too recent to judge by what came after it, or that still becomes clearly shorter.

        Args:
            residuals: The newest iterations, log units of time; NaN where they shall not count.
            scale: Scale of their noise.
        """
        if self.num_left > 0:
            return True
        third = min(self.num_since, len(residuals)) // 3
        shown = residuals[-2 * third : -third]
        if not np.isfinite(shown).any():
            return False
        before, newest = float(np.nanmedian(shown)), float(np.nanmedian(residuals[-third:]))
        return newest < min(_STILL_FALLING * before, before - _SPREAD_OF_MEDIANS * scale / math.sqrt(third))

    def _may_have_restarted(self, *, slow: bool) -> None:
        # Gaps that come again and again must not put a verdict off for ever.
        if not slow and self.num_left == 0:
            self.num_left, self.num_since = self._num_to_settle, 0
