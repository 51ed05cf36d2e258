"""How far off a prediction may be: an interval that holds the wanted share, whatever the shape of the noise.

Adaptive conformal (Gibbs and Candes, arXiv 2106.00170): its half-width, in units of the recent spread of the errors,
grows on a miss and shrinks on a hit.
"""

from dataclasses import dataclass

COVERAGE = 0.95
"""Share of the errors that are to lie within."""

# It forgets a start that takes long to settle within some tens of errors; runs are often no longer.
_SPREAD_RATE, _WIDTH_RATE = 0.05, 0.2
_LARGEST_SPREADS = 5.0
_SETTLED = 10


@dataclass(slots=True)
class Interval:
    """The interval of one predictor's relative errors."""

    _spread: float = 0.0
    _num_scored: int = 0
    _half_width: float = 3.5

    @property
    def reach(self) -> float:
        """Relative error that the next prediction has at most, with probability ``COVERAGE``."""
        return self._half_width * self._spread

    def score(self, error: float) -> None:
        """Takes the relative error, at least 0, of a prediction whose :attr:`reach` was said."""
        self._num_scored += 1
        missed = float(error > self.reach)
        if self._spread > 0:
            step = max(_WIDTH_RATE, 1.0 / self._num_scored) * self._half_width
            self._half_width = min(max(self._half_width + step * (missed - (1 - COVERAGE)), 0.1), 1e3)
            if self._num_scored > _SETTLED:
                error = min(error, _LARGEST_SPREADS * self._spread)
        self._spread += max(1.0 / self._num_scored, _SPREAD_RATE) * (error - self._spread)
