"""The compute side of a job's frames: what each rank's work should take, and which device falls behind that.

The wall time of a rank's own doing holds whatever else its host does; time on a core and time blocked do not. So where
every rank of a job reports these two, they and their sum convict. What a rank waits for a core is its host's doing and
convicts no device, but as far as its control group counts it as throttled by a quota. Of other jobs the wall is judged.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.expectation.workload import WorkExpectation, work_of
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.scan.devices import DeviceScan
from evenkeel.services.detector.domain.scan.residual.clocks import Clock, Readings, smallest_scales
from evenkeel.services.detector.domain.scan.residual.rows import DeviceRows
from evenkeel.services.detector.domain.scan.residual.throttling import Throttling
from evenkeel.services.detector.domain.scan.speed_change import SpeedChange

_SKIPPED_AT_START = 2
_SKIPPED_BY_REPLACEMENT = 1
REACH = 0.3
"""Learned from are entries that are no farther than this from the usual one, log units."""
_QUIET = 0.25
# Frames whose residuals are shown to whoever looks for more in them.
_SHOWN = 48


@dataclass(slots=True, eq=False, kw_only=True)
class ComputeWatch:
    """Compares frames with what was expected of them, judges devices by that, and learns from the healthy ones.

    Attributes:
        iterations_per_false_alarm: Iterations of a healthy job per slow verdict that the operator puts up with.
        expectation: What work should take by the wall.
        rows: Whose devices there are.
        scan: Of the devices, one column a row.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    expectation: WorkExpectation = field(default_factory=WorkExpectation)
    rows: DeviceRows = field(default_factory=DeviceRows)
    scan: DeviceScan = field(init=False)
    _on_a_core: WorkExpectation = field(default_factory=WorkExpectation)
    _throttling: Throttling = field(default_factory=Throttling)

    def __post_init__(self) -> None:
        self.scan = DeviceScan(self.iterations_per_false_alarm)

    @property
    def _is_quiet(self) -> Bools:
        """Rows that are healthy and under no suspicion: those to learn from."""
        return ~self.ill & (self.scan.evidence < _QUIET) if self.scan.clocks else ~self.ill

    def locate(self, frame: FrameObservation) -> Ints:
        """The row of each entry of a frame whose processes are not those of the frame before."""
        skipped = _SKIPPED_BY_REPLACEMENT if self.expectation.has_learned else _SKIPPED_AT_START
        replaced, moved = self.rows.locate(frame, num_to_skip=skipped)
        if self.scan.clocks:
            self.scan.grow(len(self.rows) - self.scan.num_devices)
            self.scan.replace(replaced, moved=moved)
        return self.rows.located_rows

    @property
    def ill(self) -> Bools:
        """Rows whose devices are slow."""
        return self.scan.ill if self.scan.clocks else np.zeros(len(self.rows), dtype=np.bool_)

    def residuals(self, rows: Ints) -> Floats:
        """The newest residuals of some devices, one row each, newest last; log units of time."""
        if not self.scan.clocks:
            return np.full((len(rows), 0), np.nan)
        return self.scan.residuals_of(Clock.WORK, _SHOWN)[rows]

    def speeds(self, rows: Ints) -> tuple[Floats, Floats]:
        """Throughput of some devices, and the half-widths of their 95 % intervals."""
        if not self.scan.clocks:
            return np.ones(len(rows)), np.ones(len(rows))
        throughputs, margins = self.scan.speeds
        return throughputs[rows], margins[rows]

    def judge(self, frame: FrameObservation, rows: Ints, usable: Bools) -> tuple[list[SpeedChange], Floats | None]:
        """Compares a plain frame with what was expected of its usable entries, then learns it.

        Args:
            frame: The frame.
            rows: Row of each entry.
            usable: Entries whose times count.

        Returns:
            Whose throughput changed, and the expected seconds of each entry, None while that is learned.
        """
        work, seconds = work_of(frame), frame.compute_seconds
        of_work = expected = self._expected(self.expectation, work, seconds, rows, usable)
        if frame.core_seconds is not None and frame.queued_seconds is not None:
            seconds = frame.core_seconds
            usable = usable & (seconds > 0) & np.isfinite(seconds + frame.queued_seconds)
            of_work = self._expected(self._on_a_core, work, seconds, rows, usable)
        if of_work is None:
            return [], expected
        readings = self._readings(frame, seconds, usable)
        if not self.scan.clocks:
            middle = float(np.median(of_work[usable])) if usable.any() else 1.0
            self.scan.allot(readings.clocks, len(self.rows), smallest_scales(readings.clocks, middle))
        self.scan.take_work(rows, frame.work_keys)
        self.scan.run_on(self.rows.hosts)
        log_ratios = np.full((len(self.scan.clocks), len(self.rows)), np.nan)
        if readings.clocks == self.scan.clocks:
            log_ratios[:, rows] = readings.log_ratios(of_work)
        usual = float(np.mean(of_work[usable])) if usable.any() else math.inf
        return self.scan.observe(frame.iteration, log_ratios, usual), expected

    def _readings(self, frame: FrameObservation, work_seconds: Floats, usable: Bools) -> Readings:
        if frame.core_seconds is None or frame.queued_seconds is None:
            return Readings(work_seconds=np.where(usable, work_seconds, np.nan))
        own = np.where(usable, frame.compute_seconds - frame.queued_seconds, np.nan)
        waiting = self._throttling.held(frame.ranks, frame.queued_seconds, frame.wall_seconds, frame.readings)
        return Readings(
            work_seconds=np.where(usable, work_seconds, np.nan),
            blocked_seconds=own - work_seconds,
            waiting_seconds=waiting,
            wall_seconds=own,
        )

    def _expected(
        self, expectation: WorkExpectation, work: Floats, seconds: Floats, rows: Ints, usable: Bools
    ) -> Floats | None:
        """What is expected of each entry before this frame is learned; None for the first frames."""
        if not expectation.has_learned:
            expectation.learn(work[usable], seconds[usable], seconds[usable])
            return None
        expected, healthy = expectation.expect(work), usable & self._is_quiet[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = np.log(seconds / expected)
        middle = float(np.median(apart[healthy])) if healthy.any() else 0.0
        near = healthy & (np.abs(apart - middle) < REACH)
        expectation.learn(work[near], seconds[near], expected[near], common=middle)
        return expected
