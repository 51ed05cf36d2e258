"""How large and how heavy-tailed a job's healthy residuals are, from a window of them.

Scale and tail come from quantiles, so that a few outliers move neither; whatever quantile asks for the largest scale
wins, so that noise with two modes or a heavy slow side is not taken for narrow. Noise that wanders (each residual like
the one before) is widened by the long-run factor of a first-order autoregression.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Floats = npt.NDArray[np.float64]

# |t| quantiles at 0.50, 0.90, 0.98 by degrees of freedom.
_FREEDOMS = np.array([2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0])
_QUANTILES = np.array(
    [
        [0.8165, 2.9200, 6.9646],
        [0.7854, 2.5582, 5.3935],
        [0.7649, 2.3534, 4.5407],
        [0.7407, 2.1318, 3.7469],
        [0.7267, 2.0150, 3.3649],
        [0.7176, 1.9432, 3.1427],
        [0.7064, 1.8595, 2.8965],
    ]
)
_OF_BOTH_SIDES, _OF_SLOW_SIDE = (0.5, 0.9, 0.98), (0.75, 0.95, 0.99)
_RATIOS = _QUANTILES[:, 2] / _QUANTILES[:, 0]

SMALLEST_SCALE = 0.003
PRIOR_SCALE, PRIOR_FREEDOM = 0.03, 4.0
_PRIOR_WEIGHT = 48.0
_LIGHTEST_TAIL = 6.0
FEWEST_RESIDUALS = 24
_FEWEST_OF_ROW = 8
_PRIOR_CORRELATION = 0.4
_PRIOR_PAIRS = 128.0
_DOUBT = 2.0
_FAR_OFF = 0.08
_BODY = 4.0
_FEWEST_BLOCKS, _SHORTEST_BLOCK = 4, 4
_MOST_ALIKE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Healthy residuals of a job.

    Attributes:
        scale: Scale of the Student-t that covers them, in log units of time.
        freedom: Its degrees of freedom.
        correlation: Lag-one autocorrelation, already paid for in ``scale``.
    """

    scale: float = PRIOR_SCALE
    freedom: float = PRIOR_FREEDOM
    correlation: float = 0.0


def estimate(
    residuals: Floats,
    healthy: npt.NDArray[np.bool_],
    *,
    prior_scale: float = PRIOR_SCALE,
) -> Noise:
    """The noise in a window of residuals.

    Args:
        residuals: One row a device, one column an iteration, oldest first; NaN where there was none.
        healthy: Rows to learn from.
        prior_scale: Scale assumed before anything is known.

    Returns:
        The noise, drawn towards a wide prior while there is little to learn from.
    """
    window = residuals if np.count_nonzero(healthy) == len(healthy) else residuals[healthy]
    window = np.ascontiguousarray(window)
    count, scale, freedom, correlation = _estimate_from(np.sort(window, axis=None), window, prior_scale)
    if count < FEWEST_RESIDUALS:
        return Noise(scale=prior_scale)
    return Noise(scale=scale, freedom=freedom, correlation=correlation)


def row_scales(residuals: Floats, pooled: Noise) -> Floats:
    """Scale of each device's own noise: its window's spread, drawn towards the job's, never below half of it."""
    found: Floats = np.empty(len(residuals))
    widened = math.sqrt((1 + pooled.correlation) / (1 - pooled.correlation))
    write_row_scales(np.ascontiguousarray(residuals), pooled.scale, pooled.freedom, widened, found)
    return found


@compiled
def _estimate_from(ordered: Floats, window: Floats, prior_scale: float) -> tuple[int, float, float, float]:
    """What :func:`estimate` finds.

    Args:
        ordered: All residuals of the window, ascending, those that are no numbers at either end.
        window: One row a device, one column an iteration; NaN where there was none.
        prior_scale: As there.

    Returns:
        How many residuals are numbers; scale, freedom and correlation, if these are enough.
    """
    first, stop = 0, len(ordered)
    while stop > 0 and not math.isfinite(ordered[stop - 1]):
        stop -= 1
    while first < stop and not math.isfinite(ordered[first]):
        first += 1
    if stop - first < FEWEST_RESIDUALS:
        return stop - first, prior_scale, 0.0, 0.0
    scale, freedom, correlation = _estimate(ordered[first:stop], window, prior_scale)
    return stop - first, scale, freedom, correlation


@compiled
def _estimate(ordered: Floats, window: Floats, prior_scale: float) -> tuple[float, float, float]:
    """Scale, freedom and correlation of the noise.

    Args:
        ordered: All residuals that are known, ascending.
        window: The same, one row a device, one column an iteration; NaN where there was none.
        prior_scale: As for :func:`estimate`.
    """
    scale, freedom, middle = _spread(ordered)
    correlation = _correlation(window, middle)
    scale *= math.sqrt((1 + correlation) / (1 - correlation))
    share = _PRIOR_WEIGHT / (_PRIOR_WEIGHT + len(ordered))
    scale = math.sqrt((1 - share) * scale**2 + share * prior_scale**2)
    return max(scale, SMALLEST_SCALE), freedom, correlation


@compiled
def _sizes(ordered: Floats) -> Floats:
    """The absolutes of some numbers, both ascending: from where the signs change, whichever side is nearer."""
    sizes = np.empty_like(ordered)
    above = np.searchsorted(ordered, 0.0)
    below = above - 1
    for place in range(len(ordered)):
        if above >= len(ordered) or (below >= 0 and -ordered[below] <= ordered[above]):
            sizes[place] = -ordered[below]
            below -= 1
        else:
            sizes[place] = ordered[above]
            above += 1
    return sizes


@compiled
def _spread(values: Floats) -> tuple[float, float, float]:
    """Scale and freedom that cover some residuals, ascending, and their middle size."""
    sizes = _sizes(values)
    found, least = np.empty(3), np.empty(3)
    for place in range(3):
        least[place] = _quantile(sizes, _OF_BOTH_SIDES[place])
        found[place] = max(least[place], _quantile(values, _OF_SLOW_SIDE[place]))
    middle = max(least[0], 1e-9)
    freedom = min(float(np.interp(-found[2] / middle, -_RATIOS, _FREEDOMS)), _LIGHTEST_TAIL)
    scale = 0.0
    for place in range(3):
        scale = max(scale, found[place] / np.interp(freedom, _FREEDOMS, _QUANTILES[:, place]))
    return scale, freedom, middle


@compiled
def _quantile(ordered: Floats, share: float) -> float:
    """The value below which this share of some sorted numbers lies, linear in between."""
    place = (len(ordered) - 1) * share
    whole = int(place)
    below, above = float(ordered[whole]), float(ordered[min(whole + 1, len(ordered) - 1)])
    part = place - whole
    return above - (above - below) * (1 - part) if part >= 0.5 else below + (above - below) * part


@compiled
def write_row_scales(residuals: Floats, pooled_scale: float, freedom: float, widened: float, found: Floats) -> None:
    """Writes what :func:`row_scales` finds.

    Args:
        residuals: One row a device, one column an iteration; NaN where there was none.
        pooled_scale: Scale of the job's noise.
        freedom: Its degrees of freedom.
        widened: By how much noise that hangs together as the job's does is wider.
        found: One a device; written.
    """
    usual, least = float(np.interp(freedom, _FREEDOMS, _QUANTILES[:, 1])), max(0.5 * pooled_scale, SMALLEST_SCALE)
    sizes = np.empty(residuals.shape[1], dtype=residuals.dtype)
    for row in range(len(residuals)):
        count = _sizes_of(residuals[row], 0.0, sizes)
        if count < _FEWEST_OF_ROW:
            found[row] = max(pooled_scale, SMALLEST_SCALE)
            continue
        own = _ninetieth(sizes, count)
        # A row that stands far off is ill from its first iteration: its distance is not its noise.
        if own > _FAR_OFF:
            known = np.sort(residuals[row][np.isfinite(residuals[row])])
            middle = float(known[(count - 1) // 2])
            if abs(middle) > _FAR_OFF:
                own = _ninetieth(sizes, _sizes_of(residuals[row], middle, sizes))
        own *= widened / usual
        weight = count / (count + 32.0)
        found[row] = max(math.sqrt(own * own * weight + (1 - weight) * pooled_scale**2), least)


@compiled
def _sizes_of(residuals: Floats, middle: float, sizes: Floats) -> int:
    """Writes the distances of the finite ones of some residuals from ``middle``; returns how many there are."""
    count = 0
    for value in residuals:
        if math.isfinite(value):
            sizes[count] = abs(value - middle)
            count += 1
    return count


@compiled
def _ninetieth(sizes: Floats, count: int) -> float:
    """The size that nine tenths of so many are within: the least of the largest tenth, which are kept sorted."""
    kept = count - int(np.rint(0.9 * (count - 1)))
    largest = np.full(kept, -1.0)
    for at in range(count):
        size = float(sizes[at])
        if size > largest[0]:
            place = 0
            while place + 1 < kept and largest[place + 1] < size:
                largest[place] = largest[place + 1]
                place += 1
            largest[place] = size
    return float(largest[0])


def block_scale(residuals: Floats, length: int) -> tuple[float, float]:
    """How far the mean of ``length`` healthy residuals in a row strays from 0, whatever way they hang together.

    Args:
        residuals: One row a device, one column an iteration; NaN where there was none or where it shall not count.
        length: Residuals in a block. Where there would be too few blocks to judge by they are shorter: means of those
            stray more, if anything.

    Returns:
        The root mean square of the means of all such blocks, and how many independent ones that is worth; (0.0, 0.0)
        for none.
    """
    length = min(length, residuals.shape[1])
    known = np.isfinite(residuals)
    sums = np.cumsum(np.pad(np.where(known, residuals, 0.0), ((0, 0), (1, 0))), axis=1)
    counts = np.cumsum(np.pad(known, ((0, 0), (1, 0))), axis=1)
    while True:
        full = (counts[:, length:] - counts[:, :-length]) == length
        num_apart = int((np.ceil(full.sum(axis=1) / length)).sum())
        if num_apart >= _FEWEST_BLOCKS or length <= _SHORTEST_BLOCK:
            break
        length = max(length * 3 // 4, _SHORTEST_BLOCK)
    if num_apart == 0:
        return 0.0, 0.0
    means = np.where(full, sums[:, length:] - sums[:, :-length], 0.0) / length
    power = float(np.sum(means**2))
    # Blocks that follow one another and are more alike than by chance tell little more than one (Bartlett 1946).
    pairs = np.count_nonzero(full[:, length:] & full[:, :-length])
    alike = float(np.sum(means[:, length:] * means[:, :-length]))
    alike = alike / pairs / (power / full.sum()) - math.sqrt(length / pairs) if pairs and power > 0 else 0.0
    alike = min(max(alike, 0.0), _MOST_ALIKE)
    return math.sqrt(power / full.sum()), num_apart * (1 - alike**2) / (1 + alike**2)


@compiled
def _correlation(window: Floats, middle: float) -> float:
    """Lag-one correlation of what one row a device and one column an iteration hold, on the side of caution.

    Lone outliers would hide what the body of the noise does, so they do not count; nor do gaps.
    """
    most, num_columns = max(_BODY * middle, 1e-9), window.shape[1] - 1
    count, before, after, both = 0, 0.0, 0.0, 0.0
    shown = np.zeros(num_columns, dtype=np.bool_)
    for row in range(len(window)):
        for column in range(num_columns):
            one, other = float(window[row, column]), float(window[row, column + 1])
            if abs(one) <= most and abs(other) <= most:
                shown[column] = True
                count += 1
                before += one * one
                after += other * other
                both += one * other
    if count < FEWEST_RESIDUALS:
        return _PRIOR_CORRELATION
    power = math.sqrt(before * after)
    found = both / power if power > 0 else 0.0
    # A short window makes noise look less correlated than it is (Marriott and Pope 1954).
    found += (1.0 + 4 * found) / (int(shown.sum()) + 1)
    found = (count * found + _PRIOR_PAIRS * _PRIOR_CORRELATION) / (count + _PRIOR_PAIRS)
    # While there are few pairs, the correlation may be larger than it looks.
    found = min(max(found, 0.0), 0.95)
    return min(found + _DOUBT * math.sqrt((1 - found**2) / (count + _PRIOR_PAIRS)), 0.95)
