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

from evenkeel.services.detector.domain import device_tests
from evenkeel.services.detector.domain.device_tests import (
    LARGEST_SHIFT,
    NUM_TESTS,
    ONE_STEP_SHARE,
    SMALL_SHIFTS,
    SMALLEST_LARGE_SHIFT,
)

__all__ = ("LARGEST_SHIFT", "NUM_TESTS", "ONE_STEP_SHARE", "SMALL_SHIFTS")

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]


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
    device_tests.log_ratios_of(np.asarray(z, dtype=np.float64), np.asarray(scale, dtype=np.float64), freedom, ratios)
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


def decides(residuals: Floats, scale: float, freedom: float, limit: Floats) -> bool:
    """Would these residuals alone convince a fresh test that a healthy device is slow?

    Args:
        residuals: Against healthy, oldest first, log units of time.
        scale: Scale of their noise.
        freedom: Degrees of freedom of its tails.
        limit: The threshold in force, one value.
    """
    sums, ages = np.zeros((1, NUM_TESTS)), np.zeros((1, NUM_TESTS), dtype=np.int32)
    for ratios in log_ratios(residuals, np.full(len(residuals), scale), freedom):
        advance(sums, ages, ratios[None, :], limit)
    return bool(sums.max() >= limit[0])
