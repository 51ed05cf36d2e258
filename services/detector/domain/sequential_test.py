"""Has a device changed? One-sided cumulative sums of log-likelihood ratios, with a budget for false alarms.

Under the null an observation is Student-t around 0; under the alternatives it sits around a fixed small shift, or
around a shift drawn afresh from a log-uniform range (large ones). Each ratio has mean 1 under the null, so a sum that
restarts at 0 crosses ``threshold`` less often than once in exp(threshold) observations (Lorden 1971; Page 1954). One
observation may carry at most ``ONE_STEP_SHARE`` of the way: a single slow step accuses nobody.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]

SMALL_SHIFTS = (0.045, 0.09)
"""Shifts, in log units of time, that small lasting slowdowns are tested for."""
NUM_TESTS = len(SMALL_SHIFTS) + 1
"""Alternatives that are tested against: the small shifts and the range of large ones."""
ONE_STEP_SHARE = 0.6
"""Of the way to a verdict that one observation may carry."""
SMALLEST_LARGE_SHIFT, LARGEST_SHIFT = 0.06, 3.0
# Density of what falls outside of the range of large shifts, times 1 + z^2.
_OUTSIDE, _WITHIN = 0.05 / math.pi, 0.95


@lru_cache(maxsize=64)
def threshold(*, iterations_per_false_alarm: float, num_ranks: int) -> float:
    """Height at which a sum decides, in nats.

    Args:
        iterations_per_false_alarm: The operator's budget, for the whole job.
        num_ranks: Ranks tested at once; the budget is shared among them and their tests.
    """
    return math.log(max(iterations_per_false_alarm, 10.0) * max(num_ranks, 1) * NUM_TESTS)


def student_log_density(z: Floats, scale: Floats | float, freedom: float) -> Floats:
    """Log density of a Student-t with ``freedom`` degrees of freedom, centred on 0, at ``z``."""
    peak = _constant(freedom) - np.log(scale)
    density: Floats = peak - (freedom + 1) / 2 * np.log1p((z / scale) ** 2 / freedom)
    return density


def _constant(freedom: float) -> float:
    """Log density of a Student-t of scale 1 at its peak."""
    return math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)


def smallest_large(scale: Floats | float) -> Floats:
    """Where the range of large shifts begins, for noise of this scale."""
    return np.asarray(np.minimum(np.maximum(SMALLEST_LARGE_SHIFT, 3.0 * scale), 1.0))


def log_ratios(z: Floats, scale: Floats, freedom: float) -> Floats:
    """Log-likelihood ratios of each alternative against the null, one row an observation, one column a test.

    Args:
        z: Residuals in log units of time; above 0 is slower, none NaN.
        scale: Scale of each residual's noise, same shape.
        freedom: Degrees of freedom of the noise's tails.
    """
    ratios = np.empty((len(z), NUM_TESTS))
    _write_log_ratios(np.asarray(z, dtype=np.float64), np.asarray(scale, dtype=np.float64), freedom, ratios)
    return ratios


def advance(sums: Floats, ages: Counts, ratios: Floats, limit: Floats) -> None:
    """Adds one observation to the sums, in place; a sum that falls to 0 or below starts again.

    Args:
        sums: One row a device, one column a test.
        ages: Observations in each sum since it last started, same shape.
        ratios: What :func:`log_ratios` gave.
        limit: The threshold in force for each device.
    """
    sums += np.minimum(ratios, ONE_STEP_SHARE * limit[:, None])
    ages += 1
    ended = sums <= 0.0
    ages[ended] = 0
    sums[ended] = 0.0


@compiled
def _write_log_ratios(z: Floats, scale: Floats, freedom: float, ratios: Floats) -> None:
    """Log-likelihood ratios of residuals, one row a residual, one column an alternative.

    Args:
        z: Residuals, above 0 is slower, none NaN.
        scale: Scale of the noise of each.
        freedom: Degrees of freedom of its tails.
        ratios: One row a residual; written.
    """
    tip = _tip(freedom)
    for place in range(len(z)):
        for alternative in range(NUM_TESTS):
            ratios[place, alternative] = _log_ratio(alternative, z[place], scale[place], freedom, tip)


@compiled
def _tip(freedom: float) -> float:
    """Log density of a Student-t of scale 1 at its peak, and (freedom + 1) / 2 times the logarithm of freedom."""
    half = (freedom + 1) / 2
    peak = math.lgamma(half) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return peak + half * math.log(freedom)


@compiled
def _log_ratio(alternative: int, z: float, scale: float, freedom: float, tip: float) -> float:
    """Log-likelihood ratio of an alternative against the null, noise around 0, for a residual.

    A Student-t's log density is that of its peak less (freedom + 1) / 2 log(1 + z^2 / (freedom scale^2)), so between
    two shifts the logarithms of freedom scale^2 + z^2 are all that differs. A large shift is drawn from a log-uniform
    range, with 5 % of a Cauchy under it for what falls outside.
    """
    half, null = (freedom + 1) / 2, freedom * scale * scale + z * z
    if alternative < NUM_TESTS - 1:
        shift = SMALL_SHIFTS[alternative]
        return half * math.log(null / (null + shift * (shift - 2.0 * z)))
    density, low = _OUTSIDE / (1.0 + z * z), min(max(SMALLEST_LARGE_SHIFT, 3.0 * scale), 1.0)
    if low <= z <= LARGEST_SHIFT:
        density += _WITHIN / (z * math.log(LARGEST_SHIFT / low))
    return math.log(density) - (tip + freedom * math.log(scale) - half * math.log(null))
