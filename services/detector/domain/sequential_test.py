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

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]

SMALL_SHIFTS = (0.045, 0.09)
"""Shifts, in log units of time, that small lasting slowdowns are tested for."""

NUM_TESTS = len(SMALL_SHIFTS) + 1
"""Alternatives a device and direction is tested against: the small shifts and the range of large ones."""

ONE_STEP_SHARE = 0.6
_SHIFTS = np.array(SMALL_SHIFTS)
LARGEST_SHIFT = 3.0
_SMALLEST_LARGE_SHIFT = 0.06
# What z^2 and z make up of (z - shift)^2 for each small shift, of 1 + z^2 for the large ones, and of z^2.
_SQUARES = np.array([*[(1.0, -2.0 * shift) for shift in SMALL_SHIFTS], (1.0, 0.0), (1.0, 0.0)])
# Density of what falls outside of the range of large shifts, times 1 + z^2.
_OUTSIDE = 0.05 / math.pi
# Plain numbers are made into these by every call.
_NOTHING, _NONE, _ONE = np.zeros(()), np.zeros((), dtype=np.int32), np.ones((), dtype=np.int32)


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
    return np.asarray(np.minimum(np.maximum(_SMALLEST_LARGE_SHIFT, 3.0 * scale), 1.0))


class Yardstick:
    """The noise that residuals are held against, and what of their likelihoods follows from it alone.

    Args:
        scale: Scale of each residual's noise.
        freedom: Degrees of freedom of the noise's tails.
        sides: How many rows of residuals, one after the other, are held against it at once.
    """

    __slots__ = ("_added", "_beside", "_lowest", "_weights", "scale")

    def __init__(self, scale: Floats, freedom: float, *, sides: int = 1) -> None:
        self.scale = scale
        half = (freedom + 1) / 2
        body = np.concatenate([freedom * scale**2] * sides)
        # Beside z^2 and z: of each shift, of the range of large ones, of the null.
        self._added: Floats = np.empty((NUM_TESTS + 1, len(body)))
        np.add.outer(_SHIFTS**2, body, out=self._added[: NUM_TESTS - 1])
        self._added[-2], self._added[-1] = 1.0, body
        # What the null's log density has beside the logarithm of the residual's square and that of the body.
        null = _constant(freedom) + half * math.log(freedom) + freedom * np.log(scale)
        self._beside: Floats = np.concatenate([math.log(_OUTSIDE) - null] * sides)
        self._weights: Floats = np.zeros((NUM_TESTS, NUM_TESTS + 2))
        np.fill_diagonal(self._weights, -half)
        self._weights[-1, NUM_TESTS - 1] = -1.0
        self._weights[:, NUM_TESTS], self._weights[-1, -1] = half, 1.0
        self._lowest = float(smallest_large(scale[scale.argmin()])) if scale.size else math.inf

    def log_ratios(self, z: Floats) -> Floats:
        """Log-likelihood ratios of each alternative against the null; one row a test before the axes of ``z``.

        A Student-t's log density is that of its peak less (freedom + 1) / 2 log(1 + z^2 / (freedom scale^2)), so
        between two shifts the logarithms of freedom scale^2 + z^2 are all that differs. A large shift is drawn from a
        log-uniform range, with 5 % of a Cauchy under it for what falls outside.

        Args:
            z: Residuals in log units of time, above 0 is slower, none NaN; as many rows as there are sides.
        """
        powers: Floats = np.empty((2, z.size))
        powers[1] = z.reshape(-1)
        np.multiply(powers[1], powers[1], out=powers[0])
        # One row a shift, one for the range of large shifts, one for the null: one logarithm for all.
        logs: Floats = np.empty((NUM_TESTS + 2, z.size))
        squares = logs[:-1]
        _SQUARES.dot(powers, squares)
        squares += self._added
        if z.size and z.item(int(z.argmax())) >= self._lowest:
            low = smallest_large(self.scale)
            inside = (z >= low) & (z <= LARGEST_SHIFT)
            density = np.where(inside, 0.95 / (np.maximum(z, low) * np.log(LARGEST_SHIFT / low)), 0.0).reshape(-1)
            squares[-2] /= 1.0 + squares[-2] * (density / _OUTSIDE)
        np.log(squares, out=squares)
        logs[-1] = self._beside
        return np.asarray(self._weights.dot(logs).reshape(NUM_TESTS, *z.shape))


def log_ratios(z: Floats, scale: Floats, freedom: float) -> Floats:
    """Log-likelihood ratios of each alternative against the null, one row an observation, one column a test.

    Args:
        z: Residuals in log units of time; above 0 is slower.
        scale: Scale of each residual's noise, same shape.
        freedom: Degrees of freedom of the noise's tails.
    """
    return Yardstick(scale, freedom).log_ratios(z).T


def in_doubt(values: Floats, doubt: Floats) -> Floats:
    """Residuals above 0 less what may be in doubt of them, but not below 0."""
    less = values - doubt
    np.maximum(less, _NOTHING, out=less)
    return np.minimum(values, less, out=less)


def advance(sums: Floats, ages: Counts, ratios: Floats, limit: Floats) -> None:
    """Adds one observation to the sums, in place; a sum that falls to 0 or below starts again.

    Args:
        sums: One row a device, one column a test.
        ages: Observations in each sum since it last started, same shape.
        ratios: What :func:`log_ratios` gave.
        limit: The threshold in force for each device.
    """
    _add(sums, ages, ratios, ONE_STEP_SHARE * limit[:, None])


def advance_rows(sums: Floats, ages: Counts, ratios: Floats, most: Floats | float) -> float:
    """The same for sums with one row a test before all other axes.

    Args:
        sums: One row a test.
        ages: Observations in each sum since it last started, same shape.
        ratios: What :meth:`Yardstick.log_ratios` gave; used up.
        most: What one observation may add, ``ONE_STEP_SHARE`` of the way, in the shape of the other axes or for all.

    Returns:
        The highest of all sums.
    """
    _add(sums, ages, ratios, most)
    return float(sums.item(int(sums.argmax())))


def _add(sums: Floats, ages: Counts, ratios: Floats, most: Floats | float) -> None:
    np.minimum(ratios, most, out=ratios)
    sums += ratios
    ages += _ONE
    ended = np.less_equal(sums, _NOTHING)
    np.putmask(ages, ended, _NONE)
    np.putmask(sums, ended, _NOTHING)


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
