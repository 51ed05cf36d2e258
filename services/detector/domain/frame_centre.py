"""What the devices of a frame have in common: how much slower or faster all of them are than was expected."""

import numpy as np
import numpy.typing as npt

from services.detector.domain.device_bank import DeviceBank
from services.detector.domain.level import SMALLEST_SLOWDOWN
from services.detector.domain.middle import lower_median, median

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# How much faster than usual the faster one of two may be believed to be: beyond that its measure is wrong.
_REACH_OF_TWO = 0.05
_RATE = 1.0 / 32.0


class FrameCentre:
    """Takes from each device what all have in common, and remembers where that usually stands.

    Attributes:
        value: Where the centre usually stands, log units of time.
        pair: Rows of the only two healthy devices of the newest frame, if there were just two.
    """

    __slots__ = ("pair", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.pair: Ints | None = None

    def apart(self, bank: DeviceBank, rows: Ints, base: Floats, *, noise_scale: float, all_settled: bool) -> Floats:
        """Each entry less the lower median over healthy devices, since illness only slows.

        Of two healthy devices the faster one is that median. It is as far before the other as that is behind: so
        evidence goes as fast as it came, and what is seen of the noise is not half zeros.

        Args:
            bank: The devices.
            rows: Row of each entry.
            base: Log of observed over expected seconds of each, less its offsets.
            noise_scale: Scale of the noise of the job.
            all_settled: It is known that all are healthy and have a baseline.
        """
        self.pair = None
        settled: npt.NDArray[np.bool_] | None = None
        values = base
        if not all_settled:
            where = bank.where(rows)
            healthy = ~bank.ill[where]
            settled = healthy & bank.has_offset[where] & (bank.num_to_baseline[where] == 0)
            if not np.count_nonzero(settled):
                return np.asarray(base - (lower_median(base[healthy]) if np.count_nonzero(healthy) else self.value))
            values = base[settled]
        if len(values) == 1:
            return np.asarray(base - self.value)
        residuals: Floats = base - self._follow(values, noise_scale)
        if len(values) == 2:
            two = np.arange(2) if settled is None else np.flatnonzero(settled)
            self.pair = rows[two]
            first, second = residuals[two].tolist()
            if min(first, second) == 0.0:
                residuals[two] = first - second, second - first
        return residuals

    def other_than(self, row: int) -> Ints:
        """The other one, if this row is one of the only two healthy devices; else none."""
        if self.pair is None or row not in self.pair:
            return np.zeros(0, dtype=np.int64)
        return np.asarray(self.pair[self.pair != row])

    def _follow(self, values: Floats, noise_scale: float) -> float:
        """The centre of at least two healthy devices that stand at these values."""
        centre = usual = lower_median(values)
        reach = 4 * noise_scale
        if len(values) == 2:
            centre = max(centre, self.value - _REACH_OF_TWO)
            usual = centre + min((float(values.max()) - centre) / 2, noise_scale)
        if centre > self.value + reach + SMALLEST_SLOWDOWN:
            # Most are slower than they were. Where a quarter is not, it is they who are still healthy.
            unmoved = values[np.abs(values - self.value) < reach]
            if len(unmoved) >= max(2, len(values) // 4):
                centre = usual = median(unmoved)
        self.value += min(max(usual - self.value, -reach), reach) * _RATE
        return centre
