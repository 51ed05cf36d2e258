"""What the devices of a frame have in common: how much slower or faster all of them are than was expected."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.device_tables import (
    HAS_OFFSET,
    ILL,
    OBSERVED,
    OWN,
    SETTLED,
    SHARED,
    SINCE_CHANGE,
    TO_BASELINE,
)
from evenkeel.services.detector.domain.memory.middle import middle_of, selected
from evenkeel.services.detector.domain.memory.state import DERIVED

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

# How much faster than usual the faster one of two may be believed to be: beyond that its measure is wrong.
_REACH_OF_TWO = 0.05
_CENTRE_RATE = 1.0 / 32.0
_SMALLEST_SLOWDOWN = 0.03


@dataclass(slots=True, eq=False)
class FrameCentre:
    """Remembers where what all devices have in common usually stands.

    Attributes:
        value: Where the centre usually stands, log units of time.
        pair: Rows of the only two healthy devices of the newest frame, if there were just two.
    """

    value: float = 0.0
    pair: Ints | None = field(default=None, metadata=DERIVED)

    def other_than(self, row: int) -> Ints:
        """The other one, if this row is one of the only two healthy devices; else none."""
        if self.pair is None or row not in self.pair:
            return np.zeros(0, dtype=np.int64)
        return np.asarray(self.pair[self.pair != row])


@compiled
def place(
    numbers: Floats,
    counts: Counts,
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
        base = log_ratios[entry] - numbers[SHARED, row] - numbers[OWN, row]
        residuals[entry] = base
        waits = counts[TO_BASELINE, row] > 0
        if not flags[ILL, row]:
            healthy[num_healthy] = base
            num_healthy += 1
            if flags[HAS_OFFSET, row] and not waits:
                settled[num_settled] = base
                num_settled += 1
                first, second = second, entry
        num_waiting += waits
        counts[OBSERVED, row] += 1
        counts[SINCE_CHANGE, row] += 1
        counts[SETTLED, row] += not waits
    centre = usual
    if num_settled > 1:
        centre, usual = _centre_of(settled[:num_settled], noise_scale, usual)
    elif num_settled == 0 and num_healthy > 0:
        centre = selected(healthy[:num_healthy], (num_healthy - 1) // 2)
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
def _centre_of(values: Floats, noise_scale: float, before: float) -> tuple[float, float]:
    """The centre of at least two healthy devices that stand at these values, and where it usually stands now."""
    centre = usual = selected(values.copy(), (len(values) - 1) // 2)
    reach = 4 * noise_scale
    if len(values) == 2:
        centre = max(centre, before - _REACH_OF_TWO)
        usual = centre + min((max(values[0], values[1]) - centre) / 2, noise_scale)
    if centre > before + reach + _SMALLEST_SLOWDOWN:
        # Most are slower than they were. Where a quarter is not, it is they who are still healthy.
        unmoved = values[np.abs(values - before) < reach]
        if len(unmoved) >= max(2, len(values) // 4):
            centre = usual = middle_of(unmoved)
    return centre, before + min(max(usual - before, -reach), reach) * _CENTRE_RATE
