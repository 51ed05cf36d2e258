"""Has a device changed? One-sided cumulative sums of log-likelihood ratios, with a budget for false alarms.

Under the null an observation is Student-t around 0; under the alternatives it sits around a fixed small shift, or
around a shift drawn afresh from a log-uniform range (large ones). Each ratio has mean 1 under the null, so a sum that
restarts at 0 crosses ``threshold`` less often than once in exp(threshold) observations (Lorden 1971; Page 1954). One
observation may carry at most ``ONE_STEP_SHARE`` of the way: a single slow step accuses nobody.
"""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SMALL_SHIFTS = (0.045, 0.09)
"""Shifts, in log units of time, that small lasting slowdowns are tested for."""

NUM_TESTS = len(SMALL_SHIFTS) + 1
"""Alternatives a device and direction is tested against: the small shifts and the range of large ones."""

ONE_STEP_SHARE = 0.6
_CENTRES = np.array([[0.0], *([shift] for shift in SMALL_SHIFTS)])
LARGEST_SHIFT = 3.0
_SMALLEST_LARGE_SHIFT = 0.06


def threshold(*, iterations_per_false_alarm: float, num_ranks: int) -> float:
    """Height at which a sum decides, in nats.

    Args:
        iterations_per_false_alarm: The operator's budget, for the whole job.
        num_ranks: Ranks tested at once; the budget is shared among them and their tests.
    """
    return math.log(max(iterations_per_false_alarm, 10.0) * max(num_ranks, 1) * NUM_TESTS)


def student_log_density(z: Floats, scale: Floats | float, freedom: float) -> Floats:
    """Log density of a Student-t with ``freedom`` degrees of freedom, centred on 0, at ``z``."""
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    density: Floats = constant - np.log(scale) - (freedom + 1) / 2 * np.log1p((z / scale) ** 2 / freedom)
    return density


def log_ratios(z: Floats, scale: Floats, freedom: float) -> Floats:
    """Log-likelihood ratios of each alternative against the null, one row an observation, one column a test.

    Args:
        z: Residuals in log units of time; above 0 is slower.
        scale: Scale of each residual's noise, same shape.
        freedom: Degrees of freedom of the noise's tails.
    """
    # One row a shift: each step is taken for the null and all small shifts at once.
    densities = student_log_density(z - _CENTRES, scale, freedom)
    null = densities[0]
    ratios = np.empty((len(z), NUM_TESTS))
    np.subtract(densities[1:], null, out=ratios[:, :-1].T)
    # Log-uniform over [low, LARGEST_SHIFT], with 5 % of a Cauchy under it for what falls outside.
    low = np.minimum(np.maximum(_SMALLEST_LARGE_SHIFT, 3.0 * scale), 1.0)
    inside = (z >= low) & (z <= LARGEST_SHIFT)
    density = np.where(inside, 0.95 / (np.maximum(z, low) * np.log(LARGEST_SHIFT / low)), 0.0) + 0.05 / (
        math.pi * (1.0 + z**2)
    )
    ratios[:, -1] = np.log(density) - null
    return ratios


def in_doubt(values: Floats, doubt: Floats) -> Floats:
    """Residuals above 0 less what may be in doubt of them, but not below 0."""
    return np.where(values > 0, np.maximum(values - doubt, 0.0), values)


def advance(sums: Floats, ages: npt.NDArray[np.int64], ratios: Floats, limit: Floats) -> None:
    """Adds one observation to the sums, in place; a sum that falls to 0 or below starts again.

    Args:
        sums: One row a device, one column a test.
        ages: Observations in each sum since it last started, same shape.
        ratios: What :func:`log_ratios` gave.
        limit: The threshold in force for each device.
    """
    np.add(sums, np.minimum(ratios, ONE_STEP_SHARE * limit[:, None]), out=sums)
    ages += 1
    ended = sums <= 0
    sums[ended] = 0.0
    ages[ended] = 0


def highest(sums: Floats) -> Floats:
    """The highest of each device's sums; one column after the other, as rows of three are slow to reduce."""
    found = sums[:, 0]
    for column in range(1, sums.shape[1]):
        found = np.maximum(found, sums[:, column])
    return found


def decides(residuals: Floats, scale: float, freedom: float, limit: Floats) -> bool:
    """Would these residuals alone convince a fresh test that a healthy device is slow?

    Args:
        residuals: Against healthy, oldest first, log units of time.
        scale: Scale of their noise.
        freedom: Degrees of freedom of its tails.
        limit: The threshold in force, one value.
    """
    sums, ages = np.zeros((1, NUM_TESTS)), np.zeros((1, NUM_TESTS), dtype=np.int64)
    for ratios in log_ratios(residuals, np.full(len(residuals), scale), freedom):
        advance(sums, ages, ratios[None, :], limit)
    return bool(sums.max() >= limit[0])
