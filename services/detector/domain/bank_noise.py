"""The noise of a bank of devices, from their newest residuals, without what a sick device put into them."""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.device_bank import WINDOW, DeviceBank
from evenkeel.services.detector.domain.device_offsets import BASELINE_OBSERVATIONS, recentre
from evenkeel.services.detector.domain.device_tables import HAS_OFFSET, ILL, SCALE, SUMS, TO_BASELINE
from evenkeel.services.detector.domain.device_tests import NUM_TESTS
from evenkeel.services.detector.domain.noise import (
    FEWEST_RESIDUALS,
    PRIOR_FREEDOM,
    PRIOR_SCALE,
    Noise,
    estimate_from,
    write_row_scales,
)

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_FAR_OFF = 0.08
# Share of the way to a verdict from which a row's newest residuals no longer say what healthy noise is.
_SHIFTING, _JUMPING = 0.5, 0.25


class Renewed(NamedTuple):
    """What :func:`renew_noise` found.

    Attributes:
        noise: Noise of the job.
        known: The windows that it was learned from, as :func:`unsuspected` gives them.
        settled: Of all rows, the healthy ones that have a baseline.
    """

    noise: Noise
    known: Floats
    settled: Bools


def renew_noise(
    bank: DeviceBank,
    noise: Noise,
    *,
    limit: float,
    pair: Ints | None,
    highest: float,
    fresh: Ints,
    seasoned: bool,
    most_alike: float,
) -> Renewed:
    """Estimates the noise of a job afresh, and the scale of each of its devices, which the bank keeps.

    Args:
        bank: The devices.
        noise: As it was believed to be.
        limit: As for :func:`unsuspected`, like the next two.
        pair: The same.
        highest: The same.
        fresh: Rows whose baseline was taken in this frame.
        seasoned: The windows are full: what is found is weighed against what was believed.
        most_alike: Lag-one correlation that is known from longer than the windows.
    """
    known: Any = np.empty((len(bank), WINDOW), dtype=np.float32)
    marks = np.empty((2, len(bank)), dtype=np.bool_)
    one, other = (-1, -1) if pair is None else pair.tolist()
    num_calm = _gather(
        bank.window,
        bank.numbers,
        bank.counts,
        bank.num_in_sums,
        bank.flags,
        limit if highest > _JUMPING else np.inf,
        one,
        other,
        fresh,
        known,
        marks,
    )
    window = known if num_calm == len(bank) else known[marks[1]]
    scale, freedom, correlation = _renew(
        np.sort(window, axis=None),
        window,
        known,
        marks[1],
        bank.numbers,
        bank.flags,
        noise.scale,
        noise.freedom,
        noise.correlation,
        seasoned,
        most_alike,
    )
    return Renewed(Noise(scale=scale, freedom=freedom, correlation=correlation), known, marks[0])


@compiled
def _gather(
    window: Singles,
    numbers: Floats,
    counts: Counts,
    ages: Counts,
    flags: Bools,
    limit: float,
    one: int,
    other: int,
    fresh: Ints,
    known: Floats,
    marks: Bools,
) -> int:
    """Copies the windows, of whatever precision, as far as they are no suspect's.

    Args:
        window: One row an iteration, one column a device.
        numbers: The table of numbers, see :mod:`device_tables`.
        counts: The table of counts.
        ages: Observations in each sum.
        flags: The table of flags.
        limit: See :func:`_leave_out`, like the next two; infinite where nobody is suspect.
        one: The same.
        other: The same.
        fresh: Rows whose baseline was taken in this frame.
        known: One row a device, one column an iteration; written.
        marks: Two rows: healthy devices that have a baseline, those of them that are learned from; written.

    Returns:
        How many are learned from.
    """
    for iteration in range(len(window)):
        for row in range(len(known)):
            known[row, iteration] = window[iteration, row]
    if limit < math.inf:
        _leave_out(known, numbers, ages, limit, one, other)
    for row in range(len(known)):
        marks[0, row] = marks[1, row] = flags[HAS_OFFSET, row] and counts[TO_BASELINE, row] == 0 and not flags[ILL, row]
    for row in fresh:
        # A fresh baseline shows by its level alone that its row has shifted: no test has looked at it yet.
        marks[1, row] &= abs(_middle(known[row, -BASELINE_OBSERVATIONS:])) <= _FAR_OFF
    num_calm = 0
    for row in range(len(known)):
        num_calm += marks[1, row]
    return num_calm


@compiled
def _renew(
    ordered: Floats,
    window: Floats,
    known: Floats,
    calm: Bools,
    numbers: Floats,
    flags: Bools,
    scale: float,
    freedom: float,
    correlation: float,
    seasoned: bool,
    most_alike: float,
) -> tuple[float, float, float]:
    """Finds the noise, moves what equal shares have in common, and writes the scales of devices.

    Args:
        ordered: See :func:`estimate_from`, like the next.
        window: Of devices that are learned from.
        known: Of all devices.
        calm: Who is learned from.
        numbers: The table of numbers; offsets and scales are written.
        flags: The table of flags.
        scale: Scale as it was believed to be.
        freedom: Freedom, the same.
        correlation: Correlation, the same.
        seasoned: As for :func:`renew_noise`, like the next.
        most_alike: The same.

    Returns:
        Scale, freedom and correlation of the noise.
    """
    count, found, tails, alike = estimate_from(ordered, window, most_alike, PRIOR_SCALE)
    if count < FEWEST_RESIDUALS:
        found, tails, alike = PRIOR_SCALE, PRIOR_FREEDOM, 0.0
        if seasoned:
            found, tails, alike = scale, freedom, correlation
    if seasoned:
        # Up at once, down slowly: a quiet spell is no promise.
        found = max(found, 0.8 * scale + 0.2 * found)
        tails = min(tails, 0.8 * freedom + 0.2 * tails)
        recentre(numbers, np.flatnonzero(calm))
    scales = np.empty(len(known))
    write_row_scales(known, found, tails, math.sqrt((1 + alike) / (1 - alike)), scales)
    for row in range(len(known)):
        if not (flags[ILL, row] and numbers[SCALE, row] > 0.0):
            numbers[SCALE, row] = scales[row]
    return found, tails, alike


def unsuspected(bank: DeviceBank, limit: float, pair: Ints | None, *, highest: float = np.inf) -> Floats:
    """The windows without the last residuals of rows under suspicion: a victim must not widen its own noise.

    Weak suspicion does not count: without rows that shift a little, wandering noise would be taken for calm.

    Args:
        bank: The devices.
        limit: Evidence that it takes to call a grown-up healthy device slow, nats.
        pair: The only two healthy devices, if there are just two: what is seen of one is seen of the other.
        highest: No sum is known to be beyond this share of the limit.
    """
    known = bank.residuals.copy()  # side by side: much is worked out from it
    if highest > _JUMPING:
        one, other = (-1, -1) if pair is None else pair.tolist()
        _leave_out(known, bank.numbers, bank.num_in_sums, limit, one, other)
    return known


@compiled
def _leave_out(known: Floats, numbers: Floats, ages: Counts, limit: float, one: int, other: int) -> None:
    """Leaves out of the windows what :func:`unsuspected` does not want.

    Args:
        known: One row a device, one column an iteration; written.
        numbers: The table of numbers, see :mod:`device_tables`.
        ages: Observations in each sum.
        limit: As there.
        one: One of the only two healthy devices; -1 where there are not just two.
        other: The other one.
    """
    num_columns, some = known.shape[1], False
    for row in range(len(known)):
        age = 0
        for at in range(2 * NUM_TESTS):
            share = _JUMPING if at >= 2 * (NUM_TESTS - 1) else _SHIFTING
            if numbers[SUMS + at, row] > limit * share:
                age = max(age, ages[at, row])
                some = True
        if age == 0:
            continue
        known[row, max(num_columns - age, 0) :] = np.nan
        # A row that was off before its first test has been ill since its baseline: none of that is noise.
        if abs(_middle(known[row])) > _FAR_OFF:
            known[row] = np.nan
    if some and one >= 0:
        for column in range(num_columns):
            if not (math.isfinite(known[one, column]) and math.isfinite(known[other, column])):
                known[one, column] = known[other, column] = np.nan  # a gap of one is one of both


@compiled
def _middle(residuals: Floats) -> float:
    """The median of those that are numbers; 0 where none is."""
    ordered = np.sort(residuals[np.isfinite(residuals)])
    count = len(ordered)
    return float((ordered[(count - 1) // 2] + ordered[count // 2]) / 2.0) if count else 0.0
