"""How fast is each device of a job: residuals of its clocks, scanned, as changes of its throughput.

What a device loses on one clock adds to what it loses on the others: a throughput of 0.5 is twice the time that its
work takes on a healthy device, whether it works, sleeps or waits for a core meanwhile. The wall has all of it, so it
counts where it says more than the others together.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.residual.clocks import Clock
from evenkeel.services.detector.domain.residual.recent import KEPT, Recent, grown
from evenkeel.services.detector.domain.residual.residuals import RENEWED_EVERY, Residuals
from evenkeel.services.detector.domain.scan.level import level_of, level_since_onset
from evenkeel.services.detector.domain.scan.recovery import SMALLEST_LEVEL, has_recovered, may_be_recovering
from evenkeel.services.detector.domain.scan.scan import Scan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LARGEST_STANDING = math.log(1.25)
"""Devices that differ by more from the first iteration on do not differ by nature: what is beyond is illness."""

TOLD_AGAIN_AT = 0.07
"""A throughput is told again when it has moved by so much."""

_YOUNGEST_STANDING = 16
_INTERVAL = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChange:
    """A device became slow, slower, less slow, or recovered.

    Attributes:
        device: Its column.
        throughput: Relative to healthy; 1 when it has recovered.
        margin: Half-width of the 95 % interval.
        clock: The clock that says most; of a recovered device the one that did.
        ratios: Times the expected work that each clock adds up to, of those that are slow.
        first_iteration: The first that showed it.
        num_frames: Frames since then, as far as they are kept.
        scale: Noise of one frame on that clock, log units.
        distance: Standard errors between the level and healthy.
    """

    device: int
    throughput: float
    margin: float
    clock: Clock
    ratios: dict[Clock, float]
    first_iteration: int
    num_frames: int
    scale: float
    distance: float

    @property
    def recovered(self) -> bool:
        """It is healthy now."""
        return not self.ratios


def _no_ints() -> Ints:
    return np.zeros((0, 0), dtype=np.int64)


def _no_bools() -> Bools:
    return np.zeros((0, 0), dtype=np.bool_)


@dataclass(slots=True, eq=False)
class DeviceScan:
    """Judges the devices of one job, frame by frame; deterministic, not thread-safe.

    Attributes:
        iterations_per_false_alarm: The operator's budget for the whole job.
        clocks: What is compared of each device; none before :meth:`allot`.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    clocks: tuple[Clock, ...] = ()
    _residuals: Residuals = field(default_factory=Residuals)
    _scan: Scan = field(init=False)
    _iterations: Recent = field(default_factory=Recent)
    _slow: Bools = field(default_factory=_no_bools)
    _levels: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    _scatters: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    _began_at: Ints = field(default_factory=_no_ints)
    _first: Ints = field(default_factory=_no_ints)
    _num_relapses: Ints = field(default_factory=_no_ints)
    _differs: Bools = field(default_factory=_no_bools)
    _told: Floats = field(default_factory=lambda: np.zeros(0))
    _said_most: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        self._scan = Scan(self.iterations_per_false_alarm)

    def allot(self, clocks: tuple[Clock, ...], num_devices: int, smallest_scales: Floats) -> None:
        """Begins, with nothing known.

        Args:
            clocks: What is compared of each device.
            num_devices: Devices.
            smallest_scales: Noise below which no clock is, log units.
        """
        shape = len(clocks), num_devices
        self.clocks = clocks
        self._residuals = Residuals.of_shape(*shape)
        self._scan.allot(smallest_scales, num_devices)
        self._iterations = Recent()
        self._slow, self._differs = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
        self._levels, self._scatters = np.zeros(shape), np.zeros(shape)
        self._began_at, self._first = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        self._num_relapses = np.zeros(shape, dtype=np.int64)
        self._told, self._said_most = np.ones(num_devices), np.zeros(num_devices, dtype=np.int64)

    def grow(self, count: int) -> None:
        """So many more devices, of which nothing is known."""
        self._residuals.grow(count)
        self._scan.grow(count)
        more = ((0, 0), (0, count))
        self._slow, self._differs = np.pad(self._slow, more), np.pad(self._differs, more)
        self._levels, self._scatters = np.pad(self._levels, more), np.pad(self._scatters, more)
        self._began_at, self._first = np.pad(self._began_at, more), np.pad(self._first, more)
        self._num_relapses = np.pad(self._num_relapses, more)
        self._told = grown(self._told, count, 1.0)
        self._said_most = np.pad(self._said_most, (0, count))

    def replace(self, devices: Ints, *, moved: Ints) -> None:
        """Other processes run on these devices now: none is known to be slow.

        Args:
            devices: Their columns.
            moved: Those of them that are other devices than before.
        """
        self._slow[:, devices] = False
        self._levels[:, devices] = 0.0
        self._num_relapses[:, devices] = 0
        self._told[devices] = 1.0
        self._scan.begin_anew(slice(None), devices, num_strange=0)
        self._residuals.forget(moved)

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is kept was by then."""
        np.minimum(self._iterations.tables, iteration, out=self._iterations.tables)

    def residuals_of(self, clock: Clock) -> Floats:
        """The newest residual of each device by a clock, log units; NaN where there was none."""
        found: Floats = self._residuals.newest(1)[0][self.clocks.index(clock)]
        return found

    @property
    def num_devices(self) -> int:
        """Columns of its table."""
        return len(self._told)

    @property
    def ill(self) -> Bools:
        """Devices that are slow on some clock."""
        return np.asarray(self._slow.any(axis=0))

    def observe(self, iteration: int, log_ratios: Floats) -> list[SpeedChange]:
        """Takes one frame and returns whose throughput changed.

        Args:
            iteration: Its iteration.
            log_ratios: Log of observed over expected, one row a clock, one column a device; NaN for not observed.
        """
        residuals, scan = self._residuals, self._scan
        had_begun = residuals.has_begun
        residuals.observe(log_ratios, self.ill, self._levels)
        self._iterations.push(np.array(float(iteration)))
        if not had_begun:
            if residuals.has_begun:
                residuals.begin()
                scan.begin(residuals.num_frames, residuals.uncorrected(), residuals.num_learned)
            return []
        crossings = scan.observe(residuals.newest(1)[0], ~self._slow, ~self._slow & ~self._differs)
        for clock, device in np.argwhere(crossings.windows):
            self._decide(int(clock), int(device), int(crossings.windows[clock, device]))
        for clock, device in np.argwhere(self._slow):
            self._see_whether_recovered(int(clock), int(device))
        if residuals.num_frames % RENEWED_EVERY == 0:
            self._renew()
        return self._changes()

    def _decide(self, clock: int, device: int, window: int) -> None:
        """A window has crossed: the device is slow, unless its only peer is what moved."""
        recent = self._residuals.newest(min(window, KEPT))[:, clock, device]
        if np.nanmedian(recent) < SMALLEST_LEVEL:
            return
        peers = np.flatnonzero(~self.ill)
        peers = peers[peers != device]
        if len(peers) < 2 and self._slow.shape[1] > 1:
            peer = int(peers[0]) if len(peers) else int(np.flatnonzero(np.arange(len(self._told)) != device)[0])
            rises = self._residuals.rises(min(window, KEPT))[clock] - self._levels[clock]
            if rises[device] + rises[peer] < 0:
                self._peer_became_faster(clock, device, peer)
                return
        scale, clip = float(self._scan.noise.scales[clock, device]), float(self._scan.clips[clock])
        found = level_since_onset(self._residuals.newest(KEPT)[:, clock, device], scale=scale, clip=clip)
        if found.level >= SMALLEST_LEVEL:
            self._scatters[clock, device] = found.scatter
            self._call_slow(clock, device, found.level, found.num_frames)

    def _call_slow(self, clock: int, device: int, level: float, num_frames: int) -> None:
        self._slow[clock, device] = True
        self._levels[clock, device] = level
        self._began_at[clock, device] = self._residuals.num_frames - num_frames
        kept = self._iterations.newest(num_frames)
        self._first[clock, device] = int(kept[0])
        self._scan.begin_anew(clock, device, num_strange=num_frames)

    def _peer_became_faster(self, clock: int, device: int, peer: int) -> None:
        """Both stand elsewhere now; a peer that was ill is less so."""
        if self._slow[clock, peer]:
            fell = float(np.nanmedian(self._residuals.newest(RENEWED_EVERY)[:, clock, peer]))
            self._levels[clock, peer] = max(fell, SMALLEST_LEVEL)
            self._scan.begin_anew(clock, device, num_strange=0)
            return
        both = np.array([device, peer])
        self._residuals.begin_anew(clock, both)
        self._scan.begin_anew(clock, both, num_strange=RENEWED_EVERY)

    def _see_whether_recovered(self, clock: int, device: int) -> None:
        count = self._residuals.num_frames - int(self._began_at[clock, device])
        width = float(self._scan.widths.widths[clock, 0])
        if has_recovered(
            self._residuals.newest(KEPT)[:, clock, device],
            level=float(self._levels[clock, device]),
            scale=float(self._scan.noise.scales[clock, device]),
            width=width,
            num_relapses=int(self._num_relapses[clock, device]),
            num_frames=count,
        ):
            self._slow[clock, device] = False
            self._levels[clock, device] = 0.0
            self._num_relapses[clock, device] += 1
            self._scan.begin_anew(clock, device, num_strange=0)

    def _renew(self) -> None:
        residuals, scan = self._residuals, self._scan
        healthy = ~self._slow
        widths = scan.width_of_memory(residuals.num_learned)
        residuals.renew(healthy & ~scan.suspected, self._slow, scan.noise.scales, widths)
        self._look_at_standing()
        scan.renew(residuals.uncorrected(), healthy, residuals.num_learned)
        newest = residuals.newest(KEPT)
        for clock, device in np.argwhere(self._slow):
            count = residuals.num_frames - int(self._began_at[clock, device])
            since = newest[-min(count, KEPT) :, clock, device]
            if np.isfinite(since).any() and not may_be_recovering(since, level=float(self._levels[clock, device])):
                found = level_of(since)
                self._levels[clock, device] = max(found.level, SMALLEST_LEVEL)
                self._scatters[clock, device] = found.scatter

    def _look_at_standing(self) -> None:
        """What has differed from the first iteration on by more than nature explains."""
        residuals, scan = self._residuals, self._scan
        standing = residuals.standing()
        self._differs = standing > LARGEST_STANDING
        if residuals.num_frames < _YOUNGEST_STANDING:
            return
        for clock, device in np.argwhere(self._differs & ~self._slow):
            count = int(residuals.num_learned[clock, device])
            errors = (standing[clock, device] - LARGEST_STANDING) * math.sqrt(count) / scan.noise.scales[clock, device]
            if errors > scan.height_of_standing(int(clock), count):
                residuals.place(int(clock), int(device))
                self._call_slow(int(clock), int(device), float(standing[clock, device]), residuals.num_frames)

    def _changes(self) -> list[SpeedChange]:
        ratios = np.where(self._slow, np.exp(self._levels), 1.0)
        walls = np.array([clock is Clock.WALL for clock in self.clocks])
        parts, whole = (ratios[~walls] - 1).sum(axis=0), (ratios[walls] - 1).sum(axis=0)
        throughputs = 1 / (1 + np.maximum(parts, whole))
        told = []
        for device in np.flatnonzero((self._told < 1) | self.ill):
            was = float(self._told[device])
            change = self._change(int(device), float(throughputs[device]), ratios[:, device])
            moved = abs(change.throughput - was) >= max(TOLD_AGAIN_AT, change.margin)
            if moved or change.recovered or was == 1:
                told.append(change)
                self._told[device] = change.throughput
        return told

    def _change(self, device: int, throughput: float, ratios: Floats) -> SpeedChange:
        if throughput < 1:
            self._said_most[device] = int(np.argmax(ratios))
        clock = int(self._said_most[device])
        slow = np.flatnonzero(self._slow[:, device])
        clocks = slow if len(slow) else np.array([clock])
        count = max(self._residuals.num_frames - int(self._began_at[clocks, device].min()), 1)
        first = int(self._first[slow, device].min()) if len(slow) else int(self._iterations.newest(1)[0])
        scale = float(self._scan.noise.scales[clock, device])
        scatter = max(scale, float(self._scatters[clock, device]))
        error = scatter * float(self._scan.widths.widths[clock, 0]) / math.sqrt(min(count, KEPT))
        return SpeedChange(
            device=device,
            throughput=throughput,
            margin=_INTERVAL * error * throughput,
            clock=self.clocks[clock],
            ratios={self.clocks[place]: float(ratios[place]) for place in slow},
            first_iteration=first,
            num_frames=min(count, KEPT),
            scale=scale,
            distance=float(self._levels[clock, device]) / error,
        )
