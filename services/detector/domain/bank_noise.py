"""The noise of a bank of devices, from their newest residuals, without what a sick device put into them."""

import numpy as np
import numpy.typing as npt

from services.detector.domain.device_bank import WINDOW, DeviceBank
from services.detector.domain.device_offsets import BASELINE_OBSERVATIONS, recentre
from services.detector.domain.level import row_medians
from services.detector.domain.noise import Noise, estimate, row_scales
from services.detector.domain.sequential_test import NUM_TESTS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FAR_OFF = 0.08
# Share of the way to a verdict from which a row's newest residuals no longer say what healthy noise is.
_SHIFTING, _JUMPING = 0.5, 0.25
_SHARES_OF_SUSPICION = np.array([*[_SHIFTING] * (NUM_TESTS - 1), _JUMPING])[:, None, None]


def renew_noise(
    bank: DeviceBank, noise: Noise, known: Floats, *, settled: Bools, fresh: Ints, seasoned: bool, most_alike: float
) -> Noise:
    """Estimates the noise of a job afresh, and the scale of each of its devices, which the bank keeps.

    Args:
        bank: The devices.
        noise: As it was believed to be.
        known: What :func:`unsuspected` gave.
        settled: Of all rows, the healthy ones that have a baseline.
        fresh: Rows whose baseline was taken in this frame.
        seasoned: The windows are full: what is found is weighed against what was believed.
        most_alike: Lag-one correlation that is known from longer than the windows.
    """
    calm = settled
    if len(fresh):
        calm = settled.copy()
        # A fresh baseline shows by its level alone that its row has shifted: no test has looked at it yet.
        calm[fresh] &= np.abs(row_medians(known[fresh][:, -BASELINE_OBSERVATIONS:])) <= _FAR_OFF
    found = estimate(known, calm, most_alike=most_alike, believed=noise if seasoned else None)
    if seasoned:
        # Up at once, down slowly: a quiet spell is no promise.
        found = Noise(
            scale=max(found.scale, 0.8 * noise.scale + 0.2 * found.scale),
            freedom=min(found.freedom, 0.8 * noise.freedom + 0.2 * found.freedom),
            correlation=found.correlation,
        )
        recentre(bank, np.flatnonzero(calm))
    scales = row_scales(known, found)
    bank.scale[:] = np.where(bank.ill & (bank.scale > 0), bank.scale, scales) if np.count_nonzero(bank.ill) else scales
    return found


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
    if highest <= _JUMPING:
        return known
    suspected = bank.sums > limit * _SHARES_OF_SUSPICION
    if not np.count_nonzero(suspected):
        return known
    ages = np.where(suspected, bank.ages, 0).reshape(2 * NUM_TESTS, -1).max(axis=0)
    rows = np.flatnonzero(ages)
    left = np.where(np.arange(WINDOW)[::-1] < ages[rows, None], np.nan, bank.residuals[rows])
    # A row that was off before its first test has been ill since its baseline: none of that is noise.
    left[np.abs(row_medians(left)) > _FAR_OFF] = np.nan
    known[rows] = left
    if pair is not None:
        known[pair] += 0.0 * known[pair[::-1]]  # a gap of one is one of both
    return known
