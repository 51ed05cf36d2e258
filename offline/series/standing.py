"""Where a healthy series stands: now, in the recent past, and in the long run, log units of time.

It may follow slow drift, but not beyond ``LARGEST_DRIFT`` above the long run: what creeps in stays visible.
"""

from dataclasses import dataclass

LARGEST_DRIFT = 0.03
"""How far above the long run the recent past may lie and still count as healthy, log units of time."""

_DRIFT_RATE = 1 / 24
_LONG_RUN_RATE = 1 / 1000
_YOUTH_OF_LONG_RUN = 4.0
# Scales by which one iteration moves it at most.
_REACH = 2.0


@dataclass(slots=True)
class Standing:
    """Deterministic.

    Attributes:
        centre: Where the recent healthy past lies.
        long_run: Where the long run lies.
        local: Where the series just was, slow or not.
    """

    centre: float = 0.0
    long_run: float = 0.0
    local: float = 0.0

    def begin(self, centre: float) -> None:
        """All that is known is where the newest iterations lie."""
        self.centre = self.long_run = self.local = centre

    def room(self, scale: float) -> float:
        """How much higher it may come to stand and still count as healthy, where iterations scatter by ``scale``."""
        return self.long_run + max(LARGEST_DRIFT, scale) - self.centre

    def shift(self, level: float) -> None:
        """It turned out to stand a little higher or lower than thought; faster than ever is the new healthy at once."""
        self.centre += level
        if level < 0:
            self.long_run = min(self.long_run, self.centre)

    def follow_locally(self, residual: float, scale: float) -> None:
        """Takes an iteration that was so far from :attr:`centre`, whether the series is slow or not."""
        reach = _REACH * scale
        self.local += _DRIFT_RATE * min(max(residual + self.centre - self.local, -reach), reach)

    def follow(self, residual: float, scale: float, *, num_observed: int) -> None:
        """Takes one that is healthy and under no suspicion; so many were observed in all."""
        reach = _REACH * scale
        step = _DRIFT_RATE * min(max(residual, -reach), reach)
        self.centre = min(self.centre + step, self.long_run + max(LARGEST_DRIFT, scale))
        rate = _LONG_RUN_RATE
        if self.centre < self.long_run:
            # The first iterations, which warm up, do not count for long.
            rate = max(rate, min(_YOUTH_OF_LONG_RUN / num_observed, 1.0))
        self.long_run += rate * (self.centre - self.long_run)
