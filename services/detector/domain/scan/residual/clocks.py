"""The clocks of a device, each as log(observed / expected): what a rank did, and what was done to it.

The wall time of a rank's own doing is three things that the kernel tells apart: on a core, ready and waiting for one,
and blocked (asleep, stopped, paging). Time on a core is ten times steadier than the wall on shared cores. Seconds of
the other two are no ratios: they count as what they add to the expected work. The wall is their sum, and shows what
they leave open: where time on a core is not the work's own (copies of a collective, a wait that spins), and devices
that the kernel knows nothing of.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from evenkeel.numeric.arrays import Floats

RESOLUTION_SECONDS = 1e-3
"""Blocked and waiting seconds are differences of several clocks: an iteration's are known to no better than this."""

_SMALLEST_SCALE = 0.005
_LEAST = -0.8


class Clock(StrEnum):
    """What is compared of a device."""

    WORK = "work"
    BLOCKED = "blocked"
    WAITING = "waiting for a core"
    WALL = "wall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the clocks of all devices of a job say of one iteration.

    Attributes:
        work_seconds: On a core or by device events; by the wall where there is nothing better. NaN: not observed.
        blocked_seconds: Neither working, nor waiting for a core, nor for others; None where it is not known.
        waiting_seconds: Ready, and waiting for a core; None where it is not known.
        wall_seconds: Of the work by the wall, without waiting for others; None where the work is judged by it.
    """

    work_seconds: Floats
    blocked_seconds: Floats | None = None
    waiting_seconds: Floats | None = None
    wall_seconds: Floats | None = None

    @property
    def clocks(self) -> tuple[Clock, ...]:
        """Which there are, in the order of :meth:`log_ratios`."""
        return tuple(clock for clock in Clock if self.seconds(clock) is not None)

    def seconds(self, clock: Clock) -> Floats | None:
        """What one of them read; None where it is not known."""
        return {
            Clock.WORK: self.work_seconds,
            Clock.BLOCKED: self.blocked_seconds,
            Clock.WAITING: self.waiting_seconds,
            Clock.WALL: self.wall_seconds,
        }[clock]

    def log_ratios(self, expected_seconds: Floats) -> Floats:
        """One row a clock, one column a device.

        Args:
            expected_seconds: Work seconds that a healthy device takes for what each had to do.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.array([self._log_ratio(clock, expected_seconds) for clock in self.clocks])
        return np.where(np.isfinite(found), found, np.nan)

    def _log_ratio(self, clock: Clock, expected_seconds: Floats) -> Floats:
        seconds = self.seconds(clock)
        assert seconds is not None
        ratios = seconds / expected_seconds
        return np.log(ratios) if clock in RATIOS else np.log1p(np.maximum(ratios, _LEAST))


WHAT = {
    Clock.WORK: "works longer than its peers for the same tokens",
    Clock.BLOCKED: "is blocked: asleep, stopped, paging or in I/O, and not for the other ranks",
    Clock.WAITING: "is ready and gets no core: throttled, or others use its host",
    Clock.WALL: "takes longer by the wall",
}
"""What a device that is slow by a clock does."""

RATIOS = frozenset({Clock.WORK, Clock.WALL})
"""Clocks that read how long the work took; the others read what came on top."""


def smallest_scales(clocks: tuple[Clock, ...], expected_seconds: float) -> Floats:
    """Noise below which no clock of a device is, log units of time."""
    resolution = RESOLUTION_SECONDS / expected_seconds
    return np.array([_SMALLEST_SCALE if clock in RATIOS else resolution for clock in clocks])
