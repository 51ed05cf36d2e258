"""What the devices of a frame have in common: how much slower or faster all of them are than was expected."""

import numpy as np
import numpy.typing as npt

from services.detector.domain import device_frame
from services.detector.domain.device_bank import DeviceBank

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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

    def apart(
        self, bank: DeviceBank, iteration: int, rows: Ints, log_ratios: Floats, *, noise_scale: float
    ) -> tuple[Floats, int]:
        """Each entry's residual, which the bank's window takes, too (see :func:`device_frame.place`).

        Args:
            bank: The devices; the observation is counted there.
            iteration: The frame's iteration.
            rows: Row of each entry.
            log_ratios: Log of observed over expected seconds of each.
            noise_scale: Scale of the noise of the job.

        Returns:
            The residuals, and how many entries still waited for a baseline before this frame.
        """
        residuals = np.empty(len(rows))
        self.value, first, second, num_waiting = device_frame.place(
            bank.numbers,
            bank.counts,
            bank.flags,
            rows,
            log_ratios,
            noise_scale,
            self.value,
            bank.push(iteration),
            residuals,
        )
        self.pair = None if first < 0 else np.array((first, second))
        return residuals, num_waiting

    def other_than(self, row: int) -> Ints:
        """The other one, if this row is one of the only two healthy devices; else none."""
        if self.pair is None or row not in self.pair:
            return np.zeros(0, dtype=np.int64)
        return np.asarray(self.pair[self.pair != row])
