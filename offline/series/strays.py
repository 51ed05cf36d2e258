"""How far a healthy series strays: the means of its residuals over some iterations in a row.

A window of residuals is short: noise that wanders for tens of iterations shows only a few of its excursions there. So
squares of such means are remembered for longer, of iterations that have since turned out to be healthy.
"""

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.offline.series.noise import block_scale

LENGTHS = np.array([4, 8, 16, 32])
"""Iterations of the means that are remembered."""

REMEMBERED_ITERATIONS = 1024.0
"""What is remembered for longer is forgotten at this pace."""

_FEWEST_BLOCKS = 4.0
# Residuals beyond so many scales count as that: a lone outlier is no excursion, and levels do not follow it.
_OUTLYING = 4.0
_HALF = 0.5**0.5
_FEWEST_FOR_A_LINE = 8


class Strays:
    """Mean squares of the means over ``LENGTHS`` iterations, and how many of them do not overlap."""

    def __init__(self) -> None:
        self._squares: Floats = np.zeros(len(LENGTHS))
        self._counts: Floats = np.zeros(len(LENGTHS))

    def remember(self, residuals: Floats, *, scale: float, num_new: int) -> None:
        """Forgets a little, and adds the means over the oldest iterations of a window, as far as it has no gap.

        The oldest, because who is ill has mostly been found by then, and is not taken for healthy.

        Args:
            residuals: Oldest first; NaN where they shall not count.
            scale: Scale of their noise.
            num_new: Iterations since it was last asked for.
        """
        kept, weights = 1.0 - num_new / REMEMBERED_ITERATIONS, np.minimum(num_new / LENGTHS, 1.0)
        totals = np.cumsum(without_outliers(residuals, scale))[LENGTHS - 1]
        known = np.isfinite(totals)
        self._squares = kept * self._squares + weights / LENGTHS**2 * np.where(known, totals**2, 0.0)
        self._counts = kept * self._counts + weights * known

    def over(self, length: int) -> tuple[float, float]:
        """Root mean square of means over ``length`` iterations, and how many it rests on; (0.0, 0.0) for none.

        Means over more iterations stray less, but no less than if each iteration were by itself: what is known of
        other lengths counts so far, too.
        """
        usual, count = 0.0, 0.0
        for index, each in enumerate(LENGTHS):
            if self._counts[index] >= _FEWEST_BLOCKS and (each <= length or index == 0):
                found = float(np.sqrt(self._squares[index] / self._counts[index]))
                usual = max(found, usual * _HALF)
                count = float(self._counts[index])
        return usual, count

    def reach(self, window: Floats, length: int, *, scale: float, strays: float) -> float:
        """How far a healthy mean over ``length`` iterations may be off; infinite where nothing is known.

        Args:
            window: Newest residuals; NaN where they shall not count.
            length: Iterations.
            scale: Scale of the noise.
            strays: How far, in standard deviations.
        """
        recent, num_recent = block_scale(without_outliers(window, scale), length)
        usual, count = self.over(length)
        count += num_recent
        # Quantile of a Student-t with so many degrees of freedom (Cornish and Fisher 1938).
        return max(recent, usual) * strays * (1 + (strays**2 + 1) / (4 * (count - 1))) if count > 1 else np.inf


def without_outliers(residuals: Floats, scale: float) -> Floats:
    """Residuals cut off where they count as outliers of noise of this scale."""
    return np.clip(residuals, -_OUTLYING * scale, _OUTLYING * scale)


def without_trend(window: Floats) -> Floats:
    """Residuals less their line of least squares; as they are where there are too few to draw one.

    Args:
        window: One an iteration; NaN where there was none.
    """
    columns = np.flatnonzero(np.isfinite(window))
    if len(columns) < _FEWEST_FOR_A_LINE:
        return window
    values = window[columns]
    place = columns - columns.mean()
    slope = float(place @ values) / float(place @ place)
    found = window.copy()
    found[columns] = values - values.mean() - slope * place
    return found
