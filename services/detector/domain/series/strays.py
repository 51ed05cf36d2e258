"""How far do healthy devices of a job stray: the means of their residuals over some iterations in a row.

A window of residuals is short: noise that wanders for tens of iterations shows only a few of its excursions there. So
squares of such means are remembered for longer, of devices that have since turned out to be healthy.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.series.noise import block_scale

Floats = npt.NDArray[np.float64]

LENGTHS = (4, 8, 16, 32)
"""Iterations of the means that are remembered."""

REMEMBERED_ITERATIONS = 1024.0
"""What is remembered for longer is forgotten at this pace."""

_FEWEST_BLOCKS = 4.0
# Residuals beyond so many scales count as that: a lone outlier is no excursion, and levels do not follow it.
_OUTLYING = 4.0
_HALF = 0.5**0.5
_FEWEST_FOR_A_LINE = 8


@dataclass(slots=True, eq=False)
class Strays:
    """Mean squares of the means over ``LENGTHS`` iterations, and how many of them do not overlap."""

    _squares: Floats = field(default_factory=lambda: np.zeros(len(LENGTHS)))
    _counts: Floats = field(default_factory=lambda: np.zeros(len(LENGTHS)))

    def remember(self, residuals: Floats, *, scale: float, num_new: int) -> None:
        """Takes the oldest of some windows: whoever is ill has mostly been found by now, and is not taken for healthy.

        Args:
            residuals: Of devices that are healthy; one row a device, one column an iteration, oldest first; NaN where
                they shall not count.
            scale: Scale of their noise.
            num_new: Iterations since it was last asked for.
        """
        remember_means(np.ascontiguousarray(residuals), scale, num_new, self._squares, self._counts)

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
        """How far a healthy device's mean over ``length`` iterations may be off; infinite where nothing is known.

        Args:
            window: Newest residuals of healthy devices; NaN where they shall not count.
            length: Iterations.
            scale: Scale of the noise.
            strays: How far, in standard deviations.
        """
        recent, num_recent = block_scale(without_outliers(window, scale), length)
        usual, count = self.over(length)
        recent /= _share_shown(len(window)) ** 0.5
        count += num_recent
        # Quantile of a Student-t with so many degrees of freedom (Cornish and Fisher 1938).
        return max(recent, usual) * strays * (1 + (strays**2 + 1) / (4 * (count - 1))) if count > 1 else np.inf


def without_outliers(residuals: Floats, scale: float) -> Floats:
    """Residuals cut off where they count as outliers of noise of this scale."""
    return np.minimum(np.maximum(residuals, -_OUTLYING * scale), _OUTLYING * scale)


def _share_shown(num_rows: int) -> float:
    """Share of the residuals that show noise: of three or four rows one is the frame's centre and shows nothing.

    Of two each is compared with the other; of many, one more or less makes no difference.
    """
    return (num_rows - 1) / num_rows if num_rows in (3, 4) else 1.0


def remember_means(residuals: Floats, scale: float, num_new: int, squares: Floats, counts: Floats) -> None:
    """Forgets a little, and adds the means over the oldest ``LENGTHS`` iterations that have no gap.

    Args:
        residuals: One row a device, one column an iteration, oldest first.
        scale: Scale of their noise.
        num_new: Iterations since it was last asked for.
        squares: One a length; written.
        counts: The same.
    """
    if not len(residuals):
        return
    # Two rows are each other's mirror image.
    share_of_squares = 0.5 if len(residuals) == 2 else 1.0
    share_of_counts = share_of_squares * _share_shown(len(residuals))
    most, kept = _OUTLYING * scale, 1.0 - num_new / REMEMBERED_ITERATIONS
    sums, nums = np.zeros(len(LENGTHS)), np.zeros(len(LENGTHS))
    for row in range(len(residuals)):
        total, column = 0.0, 0
        for index, length in enumerate(LENGTHS):
            while column < length:
                value = float(residuals[row, column])
                total += min(max(value, -most), most) if math.isfinite(value) else math.nan
                column += 1
            if math.isnan(total):
                break
            sums[index] += total * total
            nums[index] += 1
    for index, length in enumerate(LENGTHS):
        weight = min(num_new / length, 1.0)
        squares[index] = kept * squares[index] + share_of_squares * weight / length**2 * sums[index]
        counts[index] = kept * counts[index] + share_of_counts * weight * nums[index]


def without_trend(window: Floats) -> Floats:
    """One row of residuals less its line of least squares; as it is where there are too few to draw one.

    Args:
        window: One row, one column an iteration; NaN where there was none.
    """
    columns = np.flatnonzero(np.isfinite(window[0]))
    if len(columns) < _FEWEST_FOR_A_LINE:
        return window
    values = window[0, columns]
    place = columns - columns.mean()
    slope = float(place @ values) / float(place @ place)
    found = window.copy()
    found[0, columns] = values - values.mean() - slope * place
    return found
