"""The compute side of a job's frames: what each rank's work should take, and which device falls behind that."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.clock_watch import ClockWatch
from evenkeel.services.detector.domain.device_health import QUIET, DeviceHealth
from evenkeel.services.detector.domain.device_levels import HealthChange
from evenkeel.services.detector.domain.device_offsets import BASELINE_AFTER_RESHAPE, BASELINE_OBSERVATIONS
from evenkeel.services.detector.domain.expectation.workload import WorkExpectation, compare
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.table import LOG_RATIO, SECONDS
from evenkeel.services.detector.domain.memory.middle import median
from evenkeel.services.detector.domain.memory.state import GIVEN

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_SKIPPED_AT_START = 2
_SKIPPED_BY_REPLACEMENT = 1


@dataclass(slots=True, eq=False, kw_only=True)
class ComputeWatch:
    """Compares frames with what was expected of them, judges devices by that, and learns from the healthy ones.

    Args:
        iterations_per_false_alarm: Iterations of a healthy job per slow verdict that the operator puts up with.

    Attributes:
        expectation: What work should take.
        health: How fast each device is, by the wall.
        clocks: The same by the clocks of the threads, of jobs whose ranks know them.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    expectation: WorkExpectation = field(default_factory=WorkExpectation)
    health: DeviceHealth = field(init=False)
    clocks: ClockWatch = field(init=False)

    def __post_init__(self) -> None:
        self.health = DeviceHealth(iterations_per_false_alarm=self.iterations_per_false_alarm)
        self.clocks = ClockWatch(iterations_per_false_alarm=self.iterations_per_false_alarm)

    @property
    def reach(self) -> float:
        """How far from what is usual a healthy entry may be that is learned from, log units of time."""
        return 5 * self.health.noise.scale + 0.1

    def locate(self, frame: FrameObservation) -> Ints:
        """The row of each entry of a frame whose processes are not those of the frame before."""
        started = self.expectation.has_learned
        return self.health.bank.locate(
            frame,
            num_to_baseline=BASELINE_AFTER_RESHAPE if started else BASELINE_OBSERVATIONS,
            num_to_skip=_SKIPPED_BY_REPLACEMENT if started else _SKIPPED_AT_START,
        )

    def judge(
        self, frame: FrameObservation, table: Floats, layout: FrameLayout, rows: Ints, usable: Bools | None
    ) -> tuple[list[HealthChange], Floats | None]:
        """Compares a plain frame with what was expected of its usable entries, then learns it.

        Args:
            frame: The frame.
            table: Its table, see :mod:`frame_table`.
            layout: Its layout.
            rows: Row of each entry.
            usable: Entries whose times count; None for all.

        Returns:
            Whose throughput changed, and the expected seconds of each entry, None while that is learned.
        """
        if not self.expectation.has_learned:
            self.expectation.learn(table, usable, None)
            return [], None
        expected, apart = self.expectation.expect(table)
        told, work_keys, log_ratios = rows, layout.work_keys, table[LOG_RATIO]
        if usable is not None:
            # Of the others nothing is looked at.
            seconds = np.where(usable, table[SECONDS], expected)
            told, work_keys, log_ratios = rows[usable], work_keys[usable], np.empty(len(rows))
            apart = compare(seconds, expected, log_ratios)
        if frame.core_seconds is not None:
            changes = self.clocks.observe(frame, table, rows, usable, self.health.bank)
        else:
            known = log_ratios if usable is None else log_ratios[usable]
            changes = self.health.observe(frame.iteration, told, known, work_keys)
        self.learn(table, rows, usable, expected, log_ratios, apart)
        return changes, expected

    def learn(
        self, table: Floats, rows: Ints, usable: Bools | None, expected: Floats, log_ratios: Floats, apart: float
    ) -> None:
        """Learns the usable entries of a frame that was judged, without those that are suspect or far off.

        Args:
            table: Of the frame.
            rows: Row of each entry.
            usable: Entries whose times count; None for all.
            expected: Expected seconds of each entry.
            log_ratios: Log of the observed over those.
            apart: How far apart these are at most.
        """
        if usable is None and apart < self.reach and self.health.calm(rows, QUIET):
            self.expectation.learn(table, None, expected)
            return
        known = log_ratios if usable is None else log_ratios[usable]
        plain = self.health.quiet(rows) & (np.abs(log_ratios - median(known)) < self.reach)
        self.expectation.learn(table, plain if usable is None else plain & usable, expected)
