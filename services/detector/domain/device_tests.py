"""The sequential tests of all devices, one frame further, compiled; :mod:`sequential_test` says what they are.

Works on the tables of a device bank (:mod:`device_tables`).
"""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.device_tables import ILL, LEVEL, OBSERVED, RELAPSES, SCALE, SETTLED, SUMS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

SMALL_SHIFTS = (0.045, 0.09)
"""Shifts, in log units of time, that small lasting slowdowns are tested for."""
NUM_TESTS = len(SMALL_SHIFTS) + 1
"""Alternatives a device and direction is tested against: the small shifts and the range of large ones."""
ONE_STEP_SHARE = 0.6
"""Of the way to a verdict that one observation may carry."""
SMALLEST_LARGE_SHIFT, LARGEST_SHIFT = 0.06, 3.0
# Density of what falls outside of the range of large shifts, times 1 + z^2.
_OUTSIDE, _WITHIN = 0.05 / math.pi, 0.95
# So near, in scales, noise of at most this scale is likelier than the range of large shifts, whatever its tails: it has
# a density of 0.0044 a scale and more there (a normal's; a Student-t has more), the other one 0.016 at most.
_NEAR_SCALES, _NARROW = 3.0, 0.25

NATS_TO_RECOVER = 8.0
NATS_PER_RELAPSE = 3.0
YOUNG_OBSERVATIONS = 96
"""A younger row's baseline and noise rest on few iterations: it takes more to convince us."""
NATS_FOR_YOUTH = 8.0
# How far off a healthy row's offset may be, in standard errors, before it speaks against the row.
_OFFSET_DOUBT, _OFFSET_DOUBT_OF_YOUTH = 1.5, 2.0


@compiled
def advance(
    numbers: Floats,
    counts: Counts,
    ages: Counts,
    flags: Bools,
    rows: Ints,
    residuals: Floats,
    noise_scale: float,
    freedom: float,
    limit: float,
    memory: int,
    paired: bool,
    decided: Bools,
) -> tuple[float, int, int]:
    """Adds a frame to the sequential tests of some devices (:mod:`evenkeel.services.detector.domain.sequential_test`).

    Args:
        numbers: The table of numbers, the sums included; those are written.
        counts: The table of counts.
        ages: Observations in each sum; written.
        flags: The table of flags.
        rows: The device of each entry.
        residuals: One an entry.
        noise_scale: Scale of the noise of the job: no device's is believed to be less than half of it.
        freedom: Degrees of freedom of its tails.
        limit: Evidence that it takes to call a grown-up healthy device slow.
        memory: Iterations that a grown-up device's offset rests on.
        paired: Just two devices are healthy: whoever leaves the other behind need not have become faster.
        decided: Whether a sum of the entry has reached its height; written.

    Returns:
        The highest of all sums, how many entries are decided, and how many are of ill devices.
    """
    highest, num_decided, num_ill = 0.0, 0, 0
    tip = _tip(freedom)
    for entry in range(len(rows)):
        row = rows[entry]
        scale = max(numbers[SCALE, row], 0.5 * noise_scale)
        ill = flags[ILL, row]
        num_ill += ill
        young = max(1.0 - counts[OBSERVED, row] / YOUNG_OBSERVATIONS, 0.0)
        slower = faster = limit + NATS_FOR_YOUTH * young
        doubt = 0.0
        if ill:
            faster = NATS_TO_RECOVER + NATS_PER_RELAPSE * min(counts[RELAPSES, row], 5)
        else:
            rests_on = min(max(counts[SETTLED, row], 1), memory)
            doubt = (_OFFSET_DOUBT + _OFFSET_DOUBT_OF_YOUTH * young) * scale / math.sqrt(rests_on)
        apart = residuals[entry] - numbers[LEVEL, row]
        has_reached = False
        for direction in range(2):
            height = faster if direction else slower
            shown = -apart if direction else apart
            if direction and paired and not ill:
                shown = min(shown, 0.0)
            z = min(shown, max(shown - doubt, 0.0))
            for alternative in range(NUM_TESTS):
                at = 2 * alternative + direction
                total = numbers[SUMS + at, row]
                # A sum of 0 that would not rise stays, whatever it would fall by.
                if total == 0.0:
                    if alternative < NUM_TESTS - 1:
                        if 2.0 * z <= SMALL_SHIFTS[alternative]:
                            continue
                    elif abs(z) <= _NEAR_SCALES * scale and scale <= _NARROW:
                        continue
                ratio = _log_ratio(alternative, z, scale, freedom, tip)
                total += min(ratio, ONE_STEP_SHARE * height)
                if total <= 0.0:
                    numbers[SUMS + at, row] = 0.0
                    ages[at, row] = 0
                    continue
                numbers[SUMS + at, row] = total
                ages[at, row] += 1
                highest = max(highest, total)
                has_reached |= total >= height
        decided[entry] = has_reached
        num_decided += has_reached
    return highest, num_decided, num_ill


@compiled
def log_ratios_of(z: Floats, scale: Floats, freedom: float, ratios: Floats) -> None:
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
