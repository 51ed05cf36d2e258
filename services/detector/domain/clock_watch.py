"""Devices of a job whose threads' clocks are known: scanned by what the kernel counts, not by the wall.

The wall time of a rank's own doing holds whatever else its host does; time on a core and time blocked do not. So where
every rank of a job reports these two, they and their sum convict. What a rank waits for a core is its host's doing and
convicts no device, but as far as its control group counts it as throttled by a quota.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.device_bank import DeviceBank
from evenkeel.services.detector.domain.device_levels import HealthChange
from evenkeel.services.detector.domain.expectation.workload import WorkExpectation
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.table import LOG_RATIO, SECONDS
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.residual.clocks import Clock, Readings, smallest_scales
from evenkeel.services.detector.domain.scan.devices import DeviceScan, SpeedChange

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Learned from are entries that are no farther than this from the usual one, log units.
_REACH = 0.3
_MOST_NATS = 60.0


@dataclass(slots=True, eq=False, kw_only=True)
class ClockWatch:
    """Judges the devices of one job by the clocks of their threads; its rows are those of a bank.

    Attributes:
        iterations_per_false_alarm: The operator's budget for the whole job.
        expectation: What work should take on a core.
        scan: Of the devices, one column a row of the bank.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    expectation: WorkExpectation = field(default_factory=WorkExpectation)
    scan: DeviceScan = field(init=False)
    # By row of the bank: the newest reading of the host, and the part of the time before it that was throttled.
    _read_at: Floats = field(default_factory=lambda: np.zeros(0))
    _throttled_seconds: Floats = field(default_factory=lambda: np.zeros(0))
    _throttled: Floats = field(default_factory=lambda: np.zeros(0))
    _incarnations: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _places: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        self.scan = DeviceScan(self.iterations_per_false_alarm)

    def observe(
        self, frame: FrameObservation, table: Floats, rows: Ints, usable: Bools | None, bank: DeviceBank
    ) -> list[HealthChange]:
        """Takes a plain frame, says whose throughput changed, and writes the levels into the bank.

        Args:
            frame: The frame, whose ranks measured their threads.
            table: Of the frame, see :mod:`evenkeel.services.detector.domain.frames.table`.
            rows: The bank's row of each entry.
            usable: Entries whose times count; None for all.
            bank: The devices.
        """
        assert frame.core_seconds is not None
        assert frame.queued_seconds is not None
        known: Bools = np.isfinite(frame.core_seconds) & (frame.core_seconds > 0) & np.isfinite(frame.queued_seconds)
        known = known if usable is None else known & usable
        mine = table.copy()
        mine[SECONDS] = np.where(known, frame.core_seconds, np.nan)
        self._read(frame, bank)
        if not self.expectation.has_learned:
            self.expectation.learn(mine, known, None)
            return []
        expected, _ = self.expectation.expect(mine)
        own = np.where(known, frame.compute_seconds - frame.queued_seconds, np.nan)
        readings = Readings(
            work_seconds=mine[SECONDS],
            blocked_seconds=own - mine[SECONDS],
            waiting_seconds=np.minimum(frame.queued_seconds, self._throttled[rows] * frame.wall_seconds),
            wall_seconds=own,
        )
        self._seat(readings.clocks, float(np.median(expected[known])) if known.any() else 1.0, bank)
        log_ratios = np.full((len(readings.clocks), len(bank)), np.nan)
        log_ratios[:, rows] = readings.log_ratios(expected)
        changes = [self._changed(change, bank) for change in self.scan.observe(frame.iteration, log_ratios)]
        bank.push(frame.iteration)[-1] = self.scan.residuals_of(Clock.WORK)
        plain = known & ~self.scan.ill[rows]
        middle = np.median(mine[LOG_RATIO][plain]) if plain.any() else 0.0
        self.expectation.learn(mine, plain & (np.abs(mine[LOG_RATIO] - middle) < _REACH), expected)
        return changes

    def _seat(self, clocks: tuple[Clock, ...], usual_seconds: float, bank: DeviceBank) -> None:
        """Each row of the bank has a column; one whose process is another than before is known by its device alone."""
        if not self.scan.clocks:
            self.scan.allot(clocks, len(bank), smallest_scales(clocks, usual_seconds))
        elif len(bank) > self.scan.num_devices:
            self.scan.grow(len(bank) - self.scan.num_devices)
        before = len(self._incarnations)
        others = np.flatnonzero(bank.incarnation[:before] != self._incarnations)
        if not len(others) and before == len(bank):
            return
        places = tuple(zip(bank.nodes, bank.devices, strict=True))
        if len(others):
            moved = [one for one in others.tolist() if places[one] != self._places[one] or not places[one][1]]
            self.scan.replace(others, moved=np.array(moved, dtype=np.int64))
        self._incarnations, self._places = bank.incarnation.astype(np.int64), places

    def _read(self, frame: FrameObservation, bank: DeviceBank) -> None:
        """Takes what came of the hosts with a frame."""
        more = len(bank) - len(self._read_at)
        if more > 0:
            self._read_at = np.append(self._read_at, np.full(more, np.nan))
            self._throttled_seconds = np.append(self._throttled_seconds, np.zeros(more))
            self._throttled = np.append(self._throttled, np.zeros(more))
        for rank, at, seconds in () if frame.readings is None else frame.readings.tolist():
            row = bank.row_of(int(rank))
            if row is None:
                continue
            took, grown = at - self._read_at[row], seconds - self._throttled_seconds[row]
            if took > 0 and grown >= 0:
                self._throttled[row] = min(grown / took, 1.0)
            self._read_at[row], self._throttled_seconds[row] = at, seconds

    def _changed(self, change: SpeedChange, bank: DeviceBank) -> HealthChange:
        row = change.device
        if not (change.recovered or bank.ill[row]):
            bank.num_relapses[row] += 1
        bank.ill[row] = not change.recovered
        bank.level[row] = -np.log(change.throughput)
        bank.published[row], bank.scale[row] = change.throughput, change.scale
        bank.num_since_change[row] = change.num_frames
        return HealthChange(
            row=row,
            recovered=change.recovered,
            throughput=change.throughput,
            margin=change.margin,
            first_iteration=change.first_iteration,
            nats=min(0.5 * change.distance**2, _MOST_NATS),
            num_observations=change.num_frames,
            scale=change.scale,
            ratios=tuple(change.ratios.items()),
        )
