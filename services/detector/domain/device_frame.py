"""One frame of all devices, compiled: where each stands, its tests, and its offset, on the tables of a device bank.

The rows of the tables are named here, and nowhere else: what numba keeps of a function on disk is renewed when its own
file changes, so a compiled function looks at no other file's constants and calls no other file's functions.

Tables have one column a device. Residuals, levels, offsets and scales are in log units of time, sums and heights in
nats.
"""

import math

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

NUMBERS = ("work_key", "shared_offset", "own_offset", "level", "published", "scale")
"""Rows of the table of numbers; the sums of the tests follow, test by test, towards slower before towards faster."""

COUNTS = (
    *("rank", "incarnation", "num_to_baseline", "num_to_skip", "num_relapses"),
    *("num_observed", "num_since_change", "num_settled"),
)
"""Rows of the table of counts."""

FLAGS = ("has_offset", "suspected", "ill")
"""Rows of the table of flags."""

_SHARED, _OWN, _LEVEL, _SCALE = (NUMBERS.index(name) for name in ("shared_offset", "own_offset", "level", "scale"))
_SUMS = len(NUMBERS)
_TO_BASELINE, _RELAPSES, _OBSERVED, _SINCE_CHANGE, _SETTLED = (
    COUNTS.index(name)
    for name in ("num_to_baseline", "num_relapses", "num_observed", "num_since_change", "num_settled")
)
_HAS_OFFSET, _ILL = FLAGS.index("has_offset"), FLAGS.index("ill")

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

LARGEST_OWN_OFFSET = 0.03
"""How much slower or faster than its peers a healthy device may always be: the spread between good devices."""
# Where ranks are few, those under suspicion follow as slowly as noise is forgotten.
_SLOWEST_RATE = 1.0 / 1024.0

# How much faster than usual the faster one of two may be believed to be: beyond that its measure is wrong.
_REACH_OF_TWO = 0.05
_CENTRE_RATE = 1.0 / 32.0
_SMALLEST_SLOWDOWN = 0.03


@compiled
def place(
    numbers: Floats,
    counts: Ints,
    flags: Bools,
    rows: Ints,
    log_ratios: Floats,
    noise_scale: float,
    usual: float,
    newest: Singles,
    residuals: Floats,
) -> tuple[float, int, int, int]:
    """Takes from each entry its offsets and what all have in common, and counts the observation.

    What all have in common is the lower median over healthy devices, since illness only slows. Of two healthy devices
    the faster one is that median. It is as far before the other as that is behind: so evidence goes as fast as it
    came, and what is seen of the noise is not half zeros.

    Args:
        numbers: The table of numbers.
        counts: The table of counts; written.
        flags: The table of flags.
        rows: The device of each entry, by its place in the tables.
        log_ratios: Log of observed over expected seconds of each entry.
        noise_scale: Scale of the noise of the job.
        usual: Where the centre usually stands.
        newest: Column of the window for this iteration, one number a device; written.
        residuals: One an entry; written.

    Returns:
        Where the centre usually stands now, the rows of the only two healthy devices (-1 where there are not just
        two), and how many entries wait for a baseline, this frame's included.
    """
    count, num_healthy, num_settled, num_waiting = len(rows), 0, 0, 0
    healthy, settled = np.empty(count), np.empty(count)
    first = second = -1
    for entry in range(count):
        row = rows[entry]
        base = log_ratios[entry] - numbers[_SHARED, row] - numbers[_OWN, row]
        residuals[entry] = base
        waits = counts[_TO_BASELINE, row] > 0
        if not flags[_ILL, row]:
            healthy[num_healthy] = base
            num_healthy += 1
            if flags[_HAS_OFFSET, row] and not waits:
                settled[num_settled] = base
                num_settled += 1
                first, second = second, entry
        num_waiting += waits
        counts[_OBSERVED, row] += 1
        counts[_SINCE_CHANGE, row] += 1
        counts[_SETTLED, row] += not waits
    centre = usual
    if num_settled > 1:
        centre, usual = _centre_of(settled[:num_settled], noise_scale, usual)
    elif num_settled == 0 and num_healthy > 0:
        centre = _lower_median(healthy[:num_healthy])
    for entry in range(count):
        residuals[entry] -= centre
    if num_settled == 2:
        one, other = residuals[first], residuals[second]
        if min(one, other) == 0.0:
            residuals[first], residuals[second] = one - other, other - one
    if count < len(newest):
        newest[:] = np.nan
    for entry in range(count):
        newest[rows[entry]] = residuals[entry]
    if num_settled != 2:
        return usual, -1, -1, num_waiting
    return usual, int(rows[first]), int(rows[second]), num_waiting


@compiled
def advance(
    numbers: Floats,
    counts: Ints,
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
    """Adds a frame to the sequential tests of some devices (see :mod:`services.detector.domain.sequential_test`).

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
        scale = max(numbers[_SCALE, row], 0.5 * noise_scale)
        ill = flags[_ILL, row]
        num_ill += ill
        young = max(1.0 - counts[_OBSERVED, row] / YOUNG_OBSERVATIONS, 0.0)
        slower = faster = limit + NATS_FOR_YOUTH * young
        doubt = 0.0
        if ill:
            faster = NATS_TO_RECOVER + NATS_PER_RELAPSE * min(counts[_RELAPSES, row], 5)
        else:
            rests_on = min(max(counts[_SETTLED, row], 1), memory)
            doubt = (_OFFSET_DOUBT + _OFFSET_DOUBT_OF_YOUTH * young) * scale / math.sqrt(rests_on)
        apart = residuals[entry] - numbers[_LEVEL, row]
        has_reached = False
        for direction in range(2):
            height = faster if direction else slower
            shown = -apart if direction else apart
            if direction and paired and not ill:
                shown = min(shown, 0.0)
            z = min(shown, max(shown - doubt, 0.0))
            for alternative in range(NUM_TESTS):
                at = 2 * alternative + direction
                total = numbers[_SUMS + at, row]
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
                    numbers[_SUMS + at, row] = 0.0
                    ages[at, row] = 0
                    continue
                numbers[_SUMS + at, row] = total
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


@compiled
def follow(
    numbers: Floats,
    counts: Ints,
    flags: Bools,
    rows: Ints,
    residuals: Floats,
    noise_scale: float,
    memory: int,
    few: bool,
    paired: bool,
    quiet: float,
    calm: Bools,
) -> int:
    """Healthy devices' own offsets follow slowly, within bounds, so that a lasting slowdown is never absorbed.

    Where ranks are few, those under suspicion follow too, as slowly as noise is forgotten: one whose baseline is too
    low is suspected whenever it shows that, and followed only in between, it would never be put right.

    Args:
        numbers: The table of numbers; offsets are written.
        counts: The table of counts.
        flags: The table of flags.
        rows: The device of each entry.
        residuals: One an entry, all of which have a baseline.
        noise_scale: Scale of the noise of the job.
        memory: Iterations that a grown-up device's offset rests on.
        few: The job has few ranks.
        paired: Just two devices are healthy.
        quiet: Evidence up to which a healthy device is under no suspicion, nats.
        calm: Which entries are healthy and under no suspicion; written.

    Returns:
        How many are calm.
    """
    count, num_calm = len(rows), 0
    for entry in range(count):
        row = rows[entry]
        calm[entry] = not flags[_ILL, row]
        for at in range(2 * NUM_TESTS):
            calm[entry] &= numbers[_SUMS + at, row] <= quiet
        num_calm += calm[entry]
    steps, total, num_followed = np.empty(count), 0.0, 0
    for entry in range(count):
        row = rows[entry]
        rate = max(1.0 / (counts[_OBSERVED, row] + 8.0), 1.0 / memory)
        if few and not calm[entry]:
            rate = _SLOWEST_RATE
        reach = 2.0 * max(numbers[_SCALE, row], 0.5 * noise_scale)
        steps[entry] = min(max(residuals[entry], -reach), reach) * rate
        if calm[entry] or (few and not flags[_ILL, row]):
            total += steps[entry]
            num_followed += 1
    most, common, share = LARGEST_OWN_OFFSET, 0.0, 1.0
    if paired:
        # Both take their half of what is between them.
        share, most = 0.5, most / 2
    elif few and count > 1:
        # What all have in common is the centre's: as theirs it would grow for as long as the job runs.
        common = total / max(num_followed, 1)
    for entry in range(count):
        row = rows[entry]
        if calm[entry] or (few and not flags[_ILL, row]):
            moved = numbers[_OWN, row] + (share * steps[entry] - common)
            numbers[_OWN, row] = min(max(moved, -most), most)
    return num_calm


@compiled
def throughputs(
    numbers: Floats,
    counts: Ints,
    rows: Ints,
    noise_scale: float,
    interval_scales: float,
    window: int,
    found: Floats,
    margins: Floats,
) -> None:
    """Writes the throughput of some devices and the half-widths of their intervals.

    Args:
        numbers: The table of numbers.
        counts: The table of counts.
        rows: The devices.
        noise_scale: Scale of the noise of the job, for those whose own is not known.
        interval_scales: Half-width of the interval of one iteration, in scales.
        window: Iterations that a level rests on at most.
        found: One a device; written.
        margins: The same.
    """
    for entry in range(len(rows)):
        row = rows[entry]
        scale = numbers[_SCALE, row] if numbers[_SCALE, row] > 0.0 else noise_scale
        rests_on = min(max(counts[_SINCE_CHANGE, row], 1), window)
        found[entry] = math.exp(-numbers[_LEVEL, row])
        margins[entry] = interval_scales * scale / math.sqrt(rests_on) * found[entry]


@compiled
def _centre_of(values: Floats, noise_scale: float, before: float) -> tuple[float, float]:
    """The centre of at least two healthy devices that stand at these values, and where it usually stands now."""
    centre = usual = _lower_median(values.copy())
    reach = 4 * noise_scale
    if len(values) == 2:
        centre = max(centre, before - _REACH_OF_TWO)
        usual = centre + min((max(values[0], values[1]) - centre) / 2, noise_scale)
    if centre > before + reach + _SMALLEST_SLOWDOWN:
        # Most are slower than they were. Where a quarter is not, it is they who are still healthy.
        unmoved = values[np.abs(values - before) < reach]
        if len(unmoved) >= max(2, len(values) // 4):
            lower, odd = _lower_median(unmoved), len(unmoved) % 2 == 1
            centre = usual = lower if odd else (lower + np.min(unmoved[len(unmoved) // 2 :])) / 2.0
    return centre, before + min(max(usual - before, -reach), reach) * _CENTRE_RATE


@compiled
def _lower_median(values: Floats) -> float:
    """The lower of the two middle ones, by Hoare's selection: what is below stands before it then, the rest behind."""
    wanted, low, high = (len(values) - 1) // 2, 0, len(values) - 1
    while low < high:
        pivot, left, right = values[(low + high) // 2], low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if wanted <= right:
            high = right
        elif wanted >= left:
            low = left
        else:
            break
    return float(values[wanted])
