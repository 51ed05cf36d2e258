"""How large and how heavy-tailed a job's healthy residuals are, from a window of them.

Scale and tail come from quantiles, so that a few outliers move neither; whatever quantile asks for the largest scale
wins, so that noise with two modes or a heavy slow side is not taken for narrow. Noise that wanders (each residual like
the one before) is widened by the long-run factor of a first-order autoregression.
"""

import math
from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Floats

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

_SMALLEST_SCALE = 0.003
PRIOR_SCALE, PRIOR_FREEDOM = 0.03, 4.0
_PRIOR_WEIGHT = 48.0
_LIGHTEST_TAIL = 6.0
FEWEST_RESIDUALS = 24
_PRIOR_CORRELATION = 0.4
_PRIOR_PAIRS = 128.0
_DOUBT = 2.0
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


def estimate(residuals: Floats, *, prior_scale: float = PRIOR_SCALE) -> Noise:
    """The noise in a window of residuals.

    Args:
        residuals: Oldest first; NaN where there was none.
        prior_scale: Scale assumed before anything is known.

    Returns:
        The noise, drawn towards a wide prior while there is little to learn from.
    """
    ordered = np.sort(residuals[np.isfinite(residuals)])
    if len(ordered) < FEWEST_RESIDUALS:
        return Noise(scale=prior_scale)
    scale, freedom, middle = _spread(ordered)
    correlation = _correlation(residuals, middle)
    scale *= math.sqrt((1 + correlation) / (1 - correlation))
    share = _PRIOR_WEIGHT / (_PRIOR_WEIGHT + len(ordered))
    scale = math.sqrt((1 - share) * scale**2 + share * prior_scale**2)
    return Noise(scale=max(scale, _SMALLEST_SCALE), freedom=freedom, correlation=correlation)


def _spread(values: Floats) -> tuple[float, float, float]:
    """Scale and freedom that cover some residuals, ascending, and their middle size."""
    sizes = np.sort(np.abs(values))
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


def _quantile(ordered: Floats, share: float) -> float:
    """The value below which this share of some sorted numbers lies, linear in between."""
    place = (len(ordered) - 1) * share
    whole = int(place)
    below, above = float(ordered[whole]), float(ordered[min(whole + 1, len(ordered) - 1)])
    part = place - whole
    return above - (above - below) * (1 - part) if part >= 0.5 else below + (above - below) * part


def block_scale(residuals: Floats, length: int) -> tuple[float, float]:
    """How far the mean of ``length`` healthy residuals in a row strays from 0, whatever way they hang together.

    Args:
        residuals: Oldest first; NaN where there was none or where it shall not count.
        length: Residuals in a block. Where there would be too few blocks to judge by they are shorter: means of those
            stray more, if anything.

    Returns:
        The root mean square of the means of all such blocks, and how many independent ones that is worth; (0.0, 0.0)
        for none.
    """
    length = min(length, len(residuals))
    known = np.isfinite(residuals)
    sums = np.cumsum(np.append(0.0, np.where(known, residuals, 0.0)))
    counts = np.cumsum(np.append(0, known))
    while True:
        full = (counts[length:] - counts[:-length]) == length
        num_apart = math.ceil(full.sum() / length)
        if num_apart >= _FEWEST_BLOCKS or length <= _SHORTEST_BLOCK:
            break
        length = max(length * 3 // 4, _SHORTEST_BLOCK)
    if num_apart == 0:
        return 0.0, 0.0
    means = np.where(full, sums[length:] - sums[:-length], 0.0) / length
    power = float(np.sum(means**2))
    # Blocks that follow one another and are more alike than by chance tell little more than one (Bartlett 1946).
    pairs = np.count_nonzero(full[length:] & full[:-length])
    alike = float(np.sum(means[length:] * means[:-length]))
    alike = alike / pairs / (power / full.sum()) - math.sqrt(length / pairs) if pairs and power > 0 else 0.0
    alike = min(max(alike, 0.0), _MOST_ALIKE)
    return math.sqrt(power / full.sum()), num_apart * (1 - alike**2) / (1 + alike**2)


def _correlation(residuals: Floats, middle: float) -> float:
    """Lag-one correlation, on the side of caution.

    Lone outliers would hide what the body of the noise does, so they do not count; nor do gaps.
    """
    within = np.abs(residuals) <= max(_BODY * middle, 1e-9)
    shown = within[:-1] & within[1:]
    count, one, other = int(shown.sum()), residuals[:-1][shown], residuals[1:][shown]
    if count < FEWEST_RESIDUALS:
        return _PRIOR_CORRELATION
    power = math.sqrt(float(one @ one) * float(other @ other))
    found = float(one @ other) / power if power > 0 else 0.0
    # A short window makes noise look less correlated than it is (Marriott and Pope 1954).
    found += (1.0 + 4 * found) / (count + 1)
    found = (count * found + _PRIOR_PAIRS * _PRIOR_CORRELATION) / (count + _PRIOR_PAIRS)
    # While there are few pairs, the correlation may be larger than it looks.
    found = min(max(found, 0.0), 0.95)
    return min(found + _DOUBT * math.sqrt((1 - found**2) / (count + _PRIOR_PAIRS)), 0.95)
