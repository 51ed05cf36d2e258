"""When did a device's residuals change, and to what level? Asked once a sequential test has decided that they did."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

INTERVAL_SCALES = 1.96 * 1.2
"""Half-width of a 95 % interval in scales; a trimmed mean of Student-t noise is a fifth wider than a Gaussian's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of level.

    Attributes:
        start: Index of the first residual that showed it.
        level: Level since then, log units of time.
        num_residuals: Residuals the level rests on.
    """

    start: int
    level: float
    num_residuals: int


def locate_change(residuals: Floats, *, before: float, scale: float, age: int) -> Change:
    """The change that ends a window of residuals.

    The start is the maximum-likelihood one for a shift of unknown size from the known level ``before``. The first
    residual after the start may mix both levels, because a device changes in the middle of an iteration; the level
    leaves it out when it stands apart from what follows.

    Args:
        residuals: Finite residuals, oldest first; at least one.
        before: Level that held until the change.
        scale: Scale of their noise.
        age: Residuals in the sum that decided.
    """
    first = max(len(residuals) - max(age + 1, 2), 0)
    tail = residuals[first:] - before
    # Bounded by the newest few, so that one wild residual long ago is not taken for the start.
    bound = max(float(np.median(np.abs(tail[-3:]))), 3 * scale)
    tail = np.clip(tail, -bound, bound)
    counts = np.arange(len(tail), 0, -1)
    gains = np.cumsum(tail[::-1])[::-1] ** 2 / counts
    start = first + int(np.argmax(gains))
    values = residuals[start:]
    if len(values) >= 2 and abs(float(values[0] - np.median(values[1:]))) > 4 * scale:
        values = values[1:]
    return Change(start=start, level=robust_level(values), num_residuals=len(values))


def robust_level(residuals: Floats) -> float:
    """The middle of some residuals: their mean while there are few, without the extreme fifths when there are many."""
    if len(residuals) < 5:
        return float(np.mean(residuals))
    cut = len(residuals) // 5
    return float(np.mean(np.sort(residuals)[cut : len(residuals) - cut]))


def could_be_below(residuals: Floats, scale: float, level: float) -> bool:
    """Does the interval of a device that just became faster reach down to ``level``?

    What disturbs an iteration, the rest of the illness in the first one included, only slows it: so the lower median.
    """
    lower = float(np.sort(residuals)[(len(residuals) - 1) // 2])
    return lower - INTERVAL_SCALES * scale / float(np.sqrt(len(residuals))) <= level


def row_medians(values: Floats) -> Floats:
    """Median of each row's finite values; 0 for a row without any."""
    medians = np.zeros(len(values))
    for row, row_values in enumerate(values):
        finite = row_values[np.isfinite(row_values)]
        if len(finite):
            medians[row] = np.median(finite)
    return medians
