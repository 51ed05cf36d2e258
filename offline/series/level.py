"""When did a device's residuals change, and to what level? Asked once a sequential test has decided that they did."""

from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Floats

_TAIL = 4.0
_APART = 4.0


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

    The start is the maximum-likelihood one for a shift from the known level ``before`` to the middle of what follows,
    under tails that let a lone outlier stand before the start without being taken for it. A device changes in the
    middle of an iteration: a residual between both levels just before the start counts as the first that showed it,
    not for the level.

    Args:
        residuals: Finite residuals, oldest first; at least one.
        before: Level that held until the change.
        scale: Scale of their noise.
        age: Residuals in the sum that decided.
    """
    first = max(len(residuals) - max(age + 1, 2), 0)
    gains = [_gain(residuals[start:], before, scale) for start in range(first, len(residuals))]
    start = first + int(np.argmax(gains))
    values = residuals[start:]
    if len(values) >= 2 and abs(float(values[0] - np.median(values[1:]))) > _APART * scale:
        values = values[1:]
    level = robust_level(values)
    if start > first:
        mixed = (float(residuals[start - 1]) - before) * (1.0 if level > before else -1.0)
        if _APART * scale < mixed < abs(level - before) - _APART * scale:
            start -= 1
    return Change(start=start, level=level, num_residuals=len(values))


def _gain(values: Floats, before: float, scale: float) -> float:
    """Log-likelihood of these residuals around their middle, less that around ``before``."""
    apart, near = (values - before) / scale, (values - robust_level(values)) / scale
    return float(np.sum(np.log1p(apart**2 / _TAIL) - np.log1p(near**2 / _TAIL))) * (_TAIL + 1) / 2


def robust_level(residuals: Floats) -> float:
    """The middle of some residuals: the mean of two, the median of a few, of many the mean of the inner fifths."""
    if len(residuals) < 3:
        return float(np.mean(residuals))
    if len(residuals) < 5:
        return float(np.median(residuals))
    cut = len(residuals) // 5
    return float(np.mean(np.sort(residuals)[cut : len(residuals) - cut]))
