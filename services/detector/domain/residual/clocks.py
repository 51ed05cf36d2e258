"""The clocks of a device, each as log(observed / expected): what a rank did, and what was done to it.

The wall time of a rank's own doing is three things that the kernel tells apart: on a core, ready and waiting for one,
and blocked (asleep, stopped, paging). Time on a core is ten times steadier than the wall on shared cores. Seconds of
the other two are no ratios: they count as what they add to the expected work.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RESOLUTION_SECONDS = 1e-3
"""Blocked and waiting seconds are differences of several clocks: an iteration's are known to no better than this."""

_SMALLEST_SCALE = 0.005
_LEAST = -0.8


class Clock(StrEnum):
    """What is compared of a device."""

    WORK = "work"
    BLOCKED = "blocked"
    WAITING = "waiting for a core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the clocks of all devices of a job say of one iteration.

    Attributes:
        work_seconds: On a core or by device events; by the wall where there is nothing better. NaN: not observed.
        blocked_seconds: Neither working, nor waiting for a core, nor for others; None where it is not known.
        waiting_seconds: Ready, and waiting for a core; None where it is not known.
    """

    work_seconds: Floats
    blocked_seconds: Floats | None = None
    waiting_seconds: Floats | None = None

    @property
    def clocks(self) -> tuple[Clock, ...]:
        """Which there are, in the order of :meth:`log_ratios`."""
        further = ((Clock.BLOCKED, self.blocked_seconds), (Clock.WAITING, self.waiting_seconds))
        return (Clock.WORK, *(clock for clock, seconds in further if seconds is not None))

    def log_ratios(self, expected_seconds: Floats) -> Floats:
        """One row a clock, one column a device.

        Args:
            expected_seconds: Work seconds that a healthy device takes for what each had to do.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            added = (each for each in (self.blocked_seconds, self.waiting_seconds) if each is not None)
            found = np.array(
                [
                    np.log(self.work_seconds / expected_seconds),
                    *(np.log1p(np.maximum(seconds / expected_seconds, _LEAST)) for seconds in added),
                ]
            )
        return np.where(np.isfinite(found), found, np.nan)


def smallest_scales(clocks: tuple[Clock, ...], expected_seconds: float) -> Floats:
    """Noise below which no clock of a device is, log units of time."""
    resolution = RESOLUTION_SECONDS / expected_seconds
    return np.array([_SMALLEST_SCALE if clock is Clock.WORK else resolution for clock in clocks])
