"""How much a healthy device's compute seconds always differ: what its work has in common, and its own small deviation.

The shared part is what all holders of an equal share deviate from the expectation by; the own part is bounded, so that
a lasting slowdown is never taken for a property of the device.
"""

import numpy as np
import numpy.typing as npt

from services.detector.domain.device_bank import WINDOW, DeviceBank
from services.detector.domain.frame_terms import FrameTerms, few_ranks
from services.detector.domain.level import row_medians
from services.detector.domain.strays import REMEMBERED_ITERATIONS

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

LARGEST_OWN_OFFSET = 0.03
"""How much slower or faster than its peers a healthy device may always be: the spread between good devices."""

BASELINE_OBSERVATIONS = 5
BASELINE_AFTER_RESHAPE = 3
_LONE_OFFSET = 0.5
_RESHAPE_OFFSET = 0.1
_MOST_AT_FIRST = 0.02


def take_baseline(bank: DeviceBank, ready: Ints) -> None:
    """Takes the offsets of rows whose baseline is complete from their newest residuals."""
    recent = bank.residuals[ready][:, -BASELINE_OBSERVATIONS:]
    found = bank.shared_offset[ready] + bank.own_offset[ready] + row_medians(recent)
    for key in np.unique(bank.work_key[ready]):
        members = ready[bank.work_key[ready] == key]
        own = found[bank.work_key[ready] == key]
        settled = np.flatnonzero((bank.work_key == key) & bank.has_offset & ~bank.ill & (bank.num_to_baseline == 0))
        settled = settled[~np.isin(settled, members)]
        everyone = np.sort(np.concatenate([own, (bank.shared_offset + bank.own_offset)[settled]]))
        if len(everyone) >= 3:
            shared = np.full(len(own), everyone[(len(everyone) - 1) // 2])
        elif len(everyone) == 2:
            shared = np.minimum(own, everyone[0] + LARGEST_OWN_OFFSET)
        else:
            before = bank.shared_offset[members] + bank.own_offset[members]
            reach = np.where(bank.has_offset[members], _RESHAPE_OFFSET, _LONE_OFFSET)
            # What spoke against a device before the reshape may be all that it is slower after it.
            shared = np.clip(own, before - reach, before + np.where(bank.suspected[members], 0.0, reach))
        shift = bank.shared_offset[members] + bank.own_offset[members]
        bank.shared_offset[members] = shared
        most = np.where(bank.suspected[members], 0.0, _MOST_AT_FIRST)
        bank.own_offset[members] = np.clip(own - shared, -_MOST_AT_FIRST, most)
        shift = bank.shared_offset[members] + bank.own_offset[members] - shift
        bank.residuals[members] -= shift[:, None]
        # What came before was measured on other work.
        bank.residuals[members, : WINDOW - BASELINE_OBSERVATIONS] = np.nan
    bank.has_offset[ready] = True
    bank.suspected[ready] = False
    bank.num_settled[ready] = BASELINE_AFTER_RESHAPE
    bank.clear_tests(ready)


def recentre(bank: DeviceBank, rows: Ints) -> None:
    """Moves what holders of equal shares have in common from their own offsets, which are bounded, to the shared.

    The first baseline rests on few iterations; this is how its error is made good later.
    """
    if not len(rows):
        return
    order = rows[np.lexsort((bank.own_offset[rows], bank.work_key[rows]))]
    keys, own = bank.work_key[order], bank.own_offset[order]
    begins = np.ones(len(order) + 1, dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=begins[1:-1])
    borders = begins.nonzero()[0]
    starts, counts = borders[:-1], borders[1:] - borders[:-1]
    low, high = own[starts + (counts - 1) // 2], own[starts + counts // 2]
    apart = high - low
    apart[(counts == 2) & (apart > LARGEST_OWN_OFFSET)] = LARGEST_OWN_OFFSET
    common = (low + apart / 2).repeat(counts)
    bank.shared_offset[order] += common
    bank.own_offset[order] -= common


def follow(
    bank: DeviceBank, rows: Ints, residuals: Floats, terms: FrameTerms, *, calm: Bools | None, pair: Ints | None
) -> None:
    """Healthy devices' own offsets follow slowly, within bounds, so that a lasting slowdown is never absorbed.

    Where ranks are few, those under suspicion follow too, as slowly as noise is forgotten: one whose baseline is too
    low is suspected whenever it shows that, and followed only in between, it would never be put right.

    Args:
        bank: The devices.
        rows: Rows with a baseline.
        residuals: Of each.
        terms: Of these rows.
        calm: Which are healthy and under no suspicion; None for all.
        pair: The only two healthy devices, if there are just two.
    """
    where, rate, most, few = bank.where(rows), terms.rate, LARGEST_OWN_OFFSET, few_ranks(bank)
    if few and calm is not None:
        rate, calm = np.where(calm, rate, 1.0 / REMEMBERED_ITERATIONS), ~bank.ill[where]
    steps = np.maximum(residuals, terms.least)
    np.minimum(steps, terms.reach, out=steps)
    steps *= rate
    if pair is not None:
        # Both take their half of what is between them.
        steps, most = steps / 2, most / 2
    elif few and len(rows) > 1:
        # What all have in common is the centre's: as theirs it would grow for as long as the job runs.
        followed = steps if calm is None else steps[calm]
        steps -= np.add.reduce(followed) / max(len(followed), 1)
    steps += bank.own_offset[where]
    np.maximum(steps, -most, out=steps)
    np.minimum(steps, most, out=steps)
    if calm is None:
        bank.own_offset[where] = steps
    else:
        bank.own_offset[rows[calm]] = steps[calm]


def absorb(bank: DeviceBank, row: int, level: float) -> None:
    """A healthy device turned out to be a little off its baseline, or faster than when that was taken."""
    wanted = bank.own_offset[row] + level
    kept = min(max(wanted, -LARGEST_OWN_OFFSET), LARGEST_OWN_OFFSET)
    shared = min(wanted - kept, 0.0)
    bank.residuals[row] -= shared + kept - bank.own_offset[row]
    bank.shared_offset[row] += shared
    bank.own_offset[row] = kept
