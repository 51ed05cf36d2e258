"""How fast is each device of a job: residuals of its clocks, scanned, as changes of its throughput."""

import math
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.scan.level import ERRORS, INTERVAL
from evenkeel.services.detector.domain.scan.residual.clocks import RATIOS, Clock
from evenkeel.services.detector.domain.scan.residual.recent import KEPT
from evenkeel.services.detector.domain.scan.residual.tables import arranged, more
from evenkeel.services.detector.domain.scan.rows import RowScan
from evenkeel.services.detector.domain.scan.speed_change import SpeedChange, throughputs_of

SMALLEST_LEVEL = 0.045
"""Levels below this, log units of time, are nobody's illness."""

LARGEST_STANDING = math.log(1.25)
"""Devices that differ by more from the first iteration on do not differ by nature: what is beyond is illness."""

TOLD_AGAIN_AT = 0.07
"""A throughput is told again when it has moved by so much, and by more than chance."""


@dataclass(slots=True, eq=False)
class DeviceScan:
    """Judges the devices of one job, frame by frame; deterministic, not thread-safe.

    Attributes:
        iterations_per_false_alarm: The operator's budget for the whole job.
        clocks: What is compared of each device; none before :meth:`allot`.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    clocks: tuple[Clock, ...] = ()
    _rows: RowScan = field(init=False)
    _told: Floats = field(default_factory=lambda: np.zeros(0))
    _said_most: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        self._rows = RowScan(
            self.iterations_per_false_alarm, smallest_level=SMALLEST_LEVEL, largest_standing=LARGEST_STANDING
        )

    def run_on(self, hosts: Ints) -> None:
        """Number of the host that each device runs on; where time on a core is told, its devices share the cores."""
        on_cores = Clock.BLOCKED in self.clocks
        self._rows.hosts, self._rows.shared = hosts, tuple(on_cores and clock in RATIOS for clock in self.clocks)
        self._rows.residuals.is_of_one_host = 2 * int(np.bincount(hosts).max(initial=0)) > len(hosts) - 2

    def allot(self, clocks: tuple[Clock, ...], num_devices: int, smallest_scales: Floats) -> None:
        """Begins, with nothing known.

        Args:
            clocks: What is compared of each device.
            num_devices: Devices.
            smallest_scales: Noise below which no clock is, log units of time.
        """
        self.clocks = clocks
        self._rows.allot(num_devices, smallest_scales)
        self._told, self._said_most = np.ones(num_devices), np.zeros(num_devices, dtype=np.int64)

    def grow(self, count: int) -> None:
        """So many more devices, of which nothing is known."""
        columns = more(self.num_devices, count)
        self._rows.arrange(columns)
        self._told, self._said_most = arranged(self._told, columns, 1.0), arranged(self._said_most, columns, 0)

    def take_work(self, devices: Ints, shares: Floats) -> None:
        """Which share of the model some devices hold from now on; those of equal shares are to stand alike."""
        groups = self._rows.residuals.groups
        others = devices[groups[devices] != shares]
        if len(others):
            groups[devices] = shares
            self._rows.begin_work(others)

    def replace(self, devices: Ints, *, moved: Ints) -> None:
        """Other processes run on these devices now: none is known to be slow.

        Args:
            devices: Their columns.
            moved: Those of them that are other devices than before.
        """
        if not len(devices):
            return
        self._rows.call_healthy(devices)
        self._told[devices] = 1.0
        self._rows.residuals.forget(moved)

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is kept was by then."""
        self._rows.go_back(iteration)

    def residuals_of(self, clock: Clock, count: int) -> Floats:
        """The newest residuals by a clock since it last became ill or well, log units, newest last; NaN for none.

        Args:
            clock: The clock.
            count: Frames at most.

        Returns:
            One row a device, one column a frame.
        """
        rows, place = self._rows, self.clocks.index(clock)
        found = rows.residuals.newest(count)[:, place].T
        frames = rows.num_frames - found.shape[1] + np.arange(found.shape[1])
        return np.where(frames >= rows.began_at[place, :, None], found, np.nan)

    @property
    def evidence(self) -> Floats:
        """Of what makes a verdict that a device is slow, how much its newest frames reached."""
        return self._rows.evidence

    @property
    def speeds(self) -> tuple[Floats, Floats]:
        """Throughput of each device, and the half-width of its 95 % interval."""
        throughputs, errors = self._throughputs(self._ratios()), self._rows.errors
        return throughputs, INTERVAL * errors[self._said_most, np.arange(self.num_devices)] * throughputs

    @property
    def num_devices(self) -> int:
        """Columns of its table."""
        return len(self._told)

    @property
    def ill(self) -> Bools:
        """Devices that are slow on some clock."""
        return self._rows.ill

    def observe(self, iteration: int, log_ratios: Floats, seconds: float) -> list[SpeedChange]:
        """Takes one frame and returns whose throughput changed.

        Args:
            iteration: Its iteration.
            log_ratios: Log of observed over expected, one row a clock, one column a device; NaN for not observed.
            seconds: What the work of an iteration takes a device.
        """
        self._rows.observe(iteration, log_ratios, seconds)
        ratios = self._ratios()
        throughputs, told = self._throughputs(ratios), []
        for device in np.flatnonzero((self._told < 1) | (throughputs < 1)):
            was = float(self._told[device])
            change = self._change(int(device), float(throughputs[device]), ratios[:, device])
            moved = abs(change.throughput - was) >= max(TOLD_AGAIN_AT, change.margin * ERRORS / INTERVAL)
            if moved or change.recovered or was == 1:
                told.append(change)
                self._told[device] = change.throughput
        return told

    def _ratios(self) -> Floats:
        return np.where(self._rows.slow, np.exp(self._rows.levels), 1.0)

    def _throughputs(self, ratios: Floats) -> Floats:
        return throughputs_of(self.clocks, ratios, np.exp(-INTERVAL * self._rows.errors))

    def _change(self, device: int, throughput: float, ratios: Floats) -> SpeedChange:
        rows = self._rows
        if throughput < 1:
            self._said_most[device] = int(np.argmax(ratios))
        clock = int(self._said_most[device])
        slow = np.flatnonzero(rows.slow[:, device] & (throughput < 1))
        clocks = slow if len(slow) else np.array([np.argmax(rows.began_at[:, device])])
        count = max(rows.num_frames - int(rows.began_at[clocks, device].min()), 1)
        healthy_since = rows.iterations[-min(count, KEPT)]
        error = float(rows.errors[clock, device])
        level = float(rows.levels[clock, device]) if throughput < 1 else -math.log(self._told[device])
        return SpeedChange(
            device=device,
            throughput=throughput,
            margin=INTERVAL * error * throughput,
            clock=self.clocks[clock],
            ratios={self.clocks[place]: float(ratios[place]) for place in slow},
            first_iteration=int(rows.first_iterations[slow, device].min(initial=healthy_since)),
            num_frames=min(count, KEPT),
            scale=float(rows.scan.noise.scales[clock, device]),
            distance=level / error,
        )
