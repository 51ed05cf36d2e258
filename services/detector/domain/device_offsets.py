"""How much a healthy device's compute seconds always differ: what its work has in common, and its own small deviation.

The shared part is what all holders of an equal share deviate from the expectation by; the own part is bounded, so that
a lasting slowdown is never taken for a property of the device.
"""

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.device_bank import WINDOW, DeviceBank
from evenkeel.services.detector.domain.device_tables import ILL, OBSERVED, OWN, SCALE, SHARED, SUMS, WORK_KEY
from evenkeel.services.detector.domain.device_tests import NUM_TESTS
from evenkeel.services.detector.domain.level import row_medians

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

LARGEST_OWN_OFFSET = 0.03
"""How much slower or faster than its peers a healthy device may always be: the spread between good devices."""
# Where ranks are few, those under suspicion follow as slowly as noise is forgotten.
_SLOWEST_RATE = 1.0 / 1024.0
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


@compiled
def recentre(numbers: Floats, rows: Ints) -> None:
    """Moves what holders of equal shares have in common from their own offsets, which are bounded, to the shared.

    The first baseline rests on few iterations; this is how its error is made good later.

    Args:
        numbers: The table of numbers; offsets are written.
        rows: Healthy devices that have a baseline.
    """
    order = rows[np.argsort(numbers[OWN][rows], kind="mergesort")]
    order = order[np.argsort(numbers[WORK_KEY][order], kind="mergesort")]
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and numbers[WORK_KEY, order[end]] == numbers[WORK_KEY, order[begin]]:
            end += 1
        low = numbers[OWN, order[begin + (end - begin - 1) // 2]]
        apart = numbers[OWN, order[begin + (end - begin) // 2]] - low
        if end - begin == 2:
            apart = min(apart, LARGEST_OWN_OFFSET)
        common = low + apart / 2
        for place in range(begin, end):
            numbers[SHARED, order[place]] += common
            numbers[OWN, order[place]] -= common
        begin = end


def absorb(bank: DeviceBank, row: int, level: float) -> None:
    """A healthy device turned out to be a little off its baseline, or faster than when that was taken."""
    wanted = bank.own_offset[row] + level
    kept = min(max(wanted, -LARGEST_OWN_OFFSET), LARGEST_OWN_OFFSET)
    shared = min(wanted - kept, 0.0)
    bank.residuals[row] -= shared + kept - bank.own_offset[row]
    bank.shared_offset[row] += shared
    bank.own_offset[row] = kept


@compiled
def follow(
    numbers: Floats,
    counts: Counts,
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
        calm[entry] = not flags[ILL, row]
        for at in range(2 * NUM_TESTS):
            calm[entry] &= numbers[SUMS + at, row] <= quiet
        num_calm += calm[entry]
    steps, total, num_followed = np.empty(count), 0.0, 0
    for entry in range(count):
        row = rows[entry]
        rate = max(1.0 / (counts[OBSERVED, row] + 8.0), 1.0 / memory)
        if few and not calm[entry]:
            rate = _SLOWEST_RATE
        reach = 2.0 * max(numbers[SCALE, row], 0.5 * noise_scale)
        steps[entry] = min(max(residuals[entry], -reach), reach) * rate
        if calm[entry] or (few and not flags[ILL, row]):
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
        if calm[entry] or (few and not flags[ILL, row]):
            moved = numbers[OWN, row] + (share * steps[entry] - common)
            numbers[OWN, row] = min(max(moved, -most), most)
    return num_calm
