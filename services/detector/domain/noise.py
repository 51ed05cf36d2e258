"""How large and how heavy-tailed a job's healthy residuals are, from a window of them.

Scale and tail come from quantiles, so that a few outliers move neither; whatever quantile asks for the largest scale
wins, so that noise with two modes or a heavy slow side is not taken for narrow. Noise that wanders (each residual like
the one before) is widened by the long-run factor of a first-order autoregression.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.detector.domain.middle import quantiles

Floats = npt.NDArray[np.float64]

# |t| quantiles at 0.50, 0.90, 0.98 by degrees of freedom.
_KNOWN_FREEDOMS = [2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0]
_FREEDOMS = np.array(_KNOWN_FREEDOMS)
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
PRIOR_SCALE = 0.03
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
_SHORT = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Healthy residuals of a job.

    Attributes:
        scale: Scale of the Student-t that covers them, in log units of time.
        freedom: Its degrees of freedom.
        correlation: Lag-one autocorrelation, already paid for in ``scale``.
    """

    scale: float = PRIOR_SCALE
    freedom: float = 4.0
    correlation: float = 0.0


def estimate(
    residuals: Floats,
    healthy: npt.NDArray[np.bool_],
    *,
    prior_scale: float = PRIOR_SCALE,
    most_alike: float = 1.0,
    believed: Noise | None = None,
) -> Noise:
    """The noise in a window of residuals.

    Args:
        residuals: One row a device, one column an iteration, oldest first; NaN where there was none.
        healthy: Rows to learn from.
        prior_scale: Scale assumed before anything is known.
        most_alike: Lag-one correlation that is known from elsewhere: a short window may only show less.
        believed: What stands where there is too little to learn from; None for what is assumed of a new job.

    Returns:
        The noise, drawn towards a wide prior while there is little to learn from.
    """
    window = residuals if np.count_nonzero(healthy) == len(healthy) else residuals[healthy]
    values = window.reshape(-1)
    known = np.isfinite(values)
    if np.count_nonzero(known) < known.size:
        values = values[known]
    if len(values) < FEWEST_RESIDUALS:
        return believed or Noise(scale=prior_scale)
    both_sides = quantiles(np.abs(values), _OF_BOTH_SIDES)
    found = [max(pair) for pair in zip(both_sides, quantiles(values, _OF_SLOW_SIDE), strict=True)]
    middle = max(both_sides[0], 1e-9)
    freedom = min(float(np.interp(-found[2] / middle, -_RATIOS, _FREEDOMS)), _LIGHTEST_TAIL)
    scale = max(each / reference for each, reference in zip(found, _quantiles_at(freedom), strict=True))
    correlation = min(_correlation(window, middle), most_alike)
    scale *= math.sqrt((1 + correlation) / (1 - correlation))
    share = _PRIOR_WEIGHT / (_PRIOR_WEIGHT + len(values))
    scale = math.sqrt((1 - share) * scale**2 + share * prior_scale**2)
    return Noise(scale=max(scale, SMALLEST_SCALE), freedom=freedom, correlation=correlation)


def _quantiles_at(freedom: float) -> list[float]:
    """The quantiles of |t| with so many degrees of freedom, linear between the known ones."""
    above = min(max(bisect_right(_KNOWN_FREEDOMS, freedom), 1), len(_KNOWN_FREEDOMS) - 1)
    low, high = _KNOWN_FREEDOMS[above - 1], _KNOWN_FREEDOMS[above]
    part = min(max((freedom - low) / (high - low), 0.0), 1.0)
    found: list[float] = ((1.0 - part) * _QUANTILES[above - 1] + part * _QUANTILES[above]).tolist()
    return found


def row_scales(residuals: Floats, pooled: Noise) -> Floats:
    """Scale of each device's own noise: its window's spread, drawn towards the job's, never below half of it."""
    known = np.isfinite(residuals)
    # Without gaps one count stands for all rows.
    if np.count_nonzero(known) == known.size and residuals.shape[1] >= _FEWEST_OF_ROW:
        return _scales_of(residuals, residuals.shape[1], pooled)
    counts = known.sum(axis=1)
    enough = counts >= _FEWEST_OF_ROW
    scales = np.full(len(residuals), max(pooled.scale, SMALLEST_SCALE))
    scales[enough] = _scales_of(residuals[enough], counts[enough], pooled)
    return scales


def _scales_of(residuals: Floats, counts: npt.NDArray[np.int64] | int, pooled: Noise) -> Floats:
    """Of rows with so many finite residuals each."""
    own = _ninetieths(residuals, counts).astype(np.float64)
    # A row that stands far off is ill from its first iteration: its distance is not its noise.
    if own.size and own.item(own.argmax()) > _FAR_OFF:
        far = np.flatnonzero(own > _FAR_OFF)
        counts_of = np.broadcast_to(counts, len(own))[far]
        middle = np.sort(residuals[far], axis=1)[np.arange(len(far)), (counts_of - 1) // 2]
        shift = np.where(np.abs(middle) > _FAR_OFF, middle, 0.0)
        own[far] = _ninetieths(residuals[far] - shift[:, None], counts_of)
    own *= math.sqrt((1 + pooled.correlation) / (1 - pooled.correlation)) / _quantiles_at(pooled.freedom)[1]
    own *= own
    weight = counts / (counts + 32.0)
    own *= weight
    own += (1 - weight) * pooled.scale**2
    np.sqrt(own, out=own)
    return np.asarray(np.maximum(own, max(0.5 * pooled.scale, SMALLEST_SCALE)))


def _ninetieths(residuals: Floats, counts: npt.NDArray[np.int64] | int) -> Floats:
    """The size that nine tenths of each row's finite residuals are within."""
    sizes = np.abs(residuals)
    sizes.sort(axis=1)  # NaN sorts last, so the finite ones of a row stand first
    if isinstance(counts, int):
        return np.asarray(sizes[:, round(0.9 * (counts - 1))])
    return np.asarray(sizes[np.arange(len(sizes)), (0.9 * (counts - 1)).round().astype(np.int64)])


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


def _correlation(window: Floats, middle: float) -> float:
    # Lone outliers would hide what the body of the noise does.
    # Neither do gaps count: no comparison holds for NaN.
    body = np.abs(window) <= max(_BODY * middle, 1e-9)
    pairs = body[:, :-1] & body[:, 1:]
    count = int(np.count_nonzero(pairs))
    if count < FEWEST_RESIDUALS:
        return _PRIOR_CORRELATION
    both = np.zeros((2, *pairs.shape))
    np.copyto(both[0], window[:, :-1], where=pairs)
    np.copyto(both[1], window[:, 1:], where=pairs)
    before, after = both.reshape(2, -1)
    power = math.sqrt(_together(before, before) * _together(after, after))
    found = _together(before, after) / power if power > 0 else 0.0
    # A short window makes noise look less correlated than it is (Marriott and Pope 1954).
    length = int(np.count_nonzero(np.logical_or.reduce(pairs))) + 1
    found += (1.0 + 4 * found) / length
    found = (count * found + _PRIOR_PAIRS * _PRIOR_CORRELATION) / (count + _PRIOR_PAIRS)
    # While there are few pairs, the correlation may be larger than it looks.
    found = min(max(found, 0.0), 0.95)
    return min(found + _DOUBT * math.sqrt((1 - found**2) / (count + _PRIOR_PAIRS)), 0.95)


def _together(one: Floats, other: Floats) -> float:
    """Sum of products. Long rows not by the linear algebra library: that wakes threads for them, which costs more."""
    return float(np.dot(one, other) if len(one) <= _SHORT else np.einsum("i,i->", one, other))
