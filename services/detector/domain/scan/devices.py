"""How fast is each device of a job: residuals of its clocks, scanned, as changes of its throughput."""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.residual.clocks import Clock
from evenkeel.services.detector.domain.residual.recent import KEPT, Recent
from evenkeel.services.detector.domain.residual.residuals import RENEWED_EVERY, Residuals
from evenkeel.services.detector.domain.residual.tables import grown, no_bools, no_floats, no_ints
from evenkeel.services.detector.domain.scan.level import (
    SHORTEST,
    SMALLEST_LEVEL,
    level_of,
    level_since_onset,
    moved_level,
)
from evenkeel.services.detector.domain.scan.recovery import has_recovered, may_be_recovering
from evenkeel.services.detector.domain.scan.scan import Scan
from evenkeel.services.detector.domain.scan.speed_change import SpeedChange, throughputs_of
from evenkeel.services.detector.domain.scan.windows import LENGTHS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LARGEST_STANDING = math.log(1.25)
"""Devices that differ by more from the first iteration on do not differ by nature: what is beyond is illness."""

TOLD_AGAIN_AT = 0.07
"""A throughput is told again when it has moved by so much."""

_YOUNGEST_STANDING = 16
_INTERVAL = 1.96
_ERROR_OF_UNKNOWN = 0.03


# Tables of one row a clock and one column a device: what each number is of a device of which nothing is known.
_TABLES: tuple[tuple[str, type, float], ...] = (
    ("_slow", np.bool_, False),
    ("_levels", np.float64, 0.0),
    ("_scatters", np.float64, 0.0),
    ("_began_at", np.int64, 0),
    ("_first", np.int64, 0),
    ("_num_relapses", np.int64, 0),
    ("_differs", np.bool_, False),
)


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
    _slow: Bools = field(default_factory=no_bools)
    _levels: Floats = field(default_factory=no_floats)
    _scatters: Floats = field(default_factory=no_floats)
    _began_at: Ints = field(default_factory=no_ints)
    _first: Ints = field(default_factory=no_ints)
    _num_relapses: Ints = field(default_factory=no_ints)
    _differs: Bools = field(default_factory=no_bools)
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
        self.clocks = clocks
        self._residuals = Residuals.of_shape(len(clocks), num_devices)
        self._scan.allot(smallest_scales, num_devices)
        self._iterations = Recent()
        for name, kind, value in _TABLES:
            setattr(self, name, np.full((len(clocks), num_devices), value, dtype=kind))
        self._told, self._said_most = np.ones(num_devices), np.zeros(num_devices, dtype=np.int64)

    def grow(self, count: int) -> None:
        """So many more devices, of which nothing is known."""
        self._residuals.grow(count)
        self._scan.grow(count)
        for name, _, value in _TABLES:
            setattr(self, name, grown(getattr(self, name), count, value))
        self._told, self._said_most = grown(self._told, count, 1.0), grown(self._said_most, count, 0)

    def take_work(self, devices: Ints, shares: Floats) -> None:
        """Which share of the model some devices hold from now on; those of equal shares are to stand alike.

        Who is ill or suspected stays where its offset says: more time for another share may be all that speaks against
        it. The others are placed anew.
        """
        residuals = self._residuals
        others = devices[residuals.groups[devices] != shares]
        if not len(others):
            return
        residuals.groups[devices] = shares
        others = others[residuals.num_seen[:, others].any(axis=0)]
        residuals.begin_work(others[~(self.ill | self._scan.suspected.any(axis=0))[others]])
        self._scan.begin_anew(slice(None), others, num_strange=0)

    def replace(self, devices: Ints, *, moved: Ints) -> None:
        """Other processes run on these devices now: none is known to be slow.

        Args:
            devices: Their columns.
            moved: Those of them that are other devices than before.
        """
        if not len(devices):
            return
        self._slow[:, devices] = False
        self._levels[:, devices] = 0.0
        self._num_relapses[:, devices] = 0
        self._told[devices] = 1.0
        self._scan.begin_anew(slice(None), devices, num_strange=0)
        self._residuals.forget(moved)

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is kept was by then."""
        np.minimum(self._iterations.tables, iteration, out=self._iterations.tables)

    def residuals_of(self, clock: Clock, count: int) -> Floats:
        """The newest residuals by a clock since it last became ill or well, log units, newest last; NaN for none.

        Args:
            clock: The clock.
            count: Frames at most.

        Returns:
            One row a device, one column a frame.
        """
        place = self.clocks.index(clock)
        found = self._residuals.newest(count)[:, place].T
        frames = self._residuals.num_frames - found.shape[1] + np.arange(found.shape[1])
        return np.where(frames >= self._began_at[place, :, None], found, np.nan)

    @property
    def evidence(self) -> Floats:
        """Of what makes a verdict that a device is slow, how much its newest frames reached."""
        return np.asarray(self._scan.evidence.max(axis=0) ** 2)

    @property
    def speeds(self) -> tuple[Floats, Floats]:
        """Throughput of each device, and the half-width of its 95 % interval."""
        throughputs = throughputs_of(self.clocks, self._ratios())
        return throughputs, _INTERVAL * self._errors() * throughputs

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
        begun = residuals.observe(log_ratios, self.ill, self._levels, scan.noise.scales)
        self._iterations.push(np.array(float(iteration)))
        if begun.any():
            residuals.begin(begun, self.ill)
            scan.begin(residuals.num_frames, begun, residuals.uncorrected(), residuals.num_learned)
        tested = residuals.has_begun & ~self._slow
        if scan.num_frames in (0, residuals.num_frames):
            return []
        crossings = scan.observe(residuals.newest(1)[0], tested, tested & ~self._differs)
        for clock, device in np.argwhere(crossings.windows):
            self._decide(int(clock), int(device), int(crossings.windows[clock, device]))
        for clock, device in np.argwhere(self._slow):
            self._see_where_it_stands(int(clock), int(device))
        if residuals.num_frames % RENEWED_EVERY == 0:
            self._renew()
        return self._changes()

    def _decide(self, clock: int, device: int, window: int) -> None:
        """A window has crossed: the device is slow, unless its only peer is what moved."""
        recent = self._residuals.newest(min(window, KEPT))[:, clock, device]
        middle = float(np.nanmedian(recent))
        if middle < SMALLEST_LEVEL / 2:
            return  # A few frames have made all of it.
        peers = np.flatnonzero(~self.ill & np.isfinite(self._residuals.newest(1)[0, clock]))
        peers = peers[peers != device]
        if len(peers) < 2 and self._slow.shape[1] > 1:
            peer = int(peers[0]) if len(peers) else int(np.flatnonzero(np.arange(len(self._told)) != device)[0])
            rises = self._residuals.rises(min(window, KEPT))[clock] - self._levels[clock]
            if rises[device] + rises[peer] < 0:
                self._peer_became_faster(clock, device, peer)
                return
        if window == LENGTHS[0]:
            # What is found so soon stands out of single frames, and most of the window may be from before.
            middle = max(middle, float(np.nanmedian(recent[-SHORTEST:])))
        found = level_since_onset(self._residuals.newest(KEPT)[:, clock, device], middle=middle)
        if found.level >= SMALLEST_LEVEL:
            self._scatters[clock, device] = found.scatter
            self._call_slow(clock, device, found.level, found.num_frames)

    def _call_slow(self, clock: int, device: int, level: float, num_frames: int) -> None:
        self._slow[clock, device] = True
        self._residuals.hold(clock, device)
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
        self._residuals.begin_anew(clock, both, self.ill)
        self._scan.begin_anew(clock, both, num_strange=RENEWED_EVERY)

    def _see_where_it_stands(self, clock: int, device: int) -> None:
        """Whether an ill device has recovered, or is slower or less slow than it was."""
        count = min(self._residuals.num_frames - int(self._began_at[clock, device]), KEPT)
        since = self._residuals.newest(count)[:, clock, device]
        level, num_relapses = float(self._levels[clock, device]), int(self._num_relapses[clock, device])
        scale, width = float(self._scan.noise.scales[clock, device]), float(self._scan.widths.widths[clock, 0])
        moved = moved_level(since, level=level, scale=scale, width=width)
        is_less_ill = moved is not None and moved.least(scale * width) > SMALLEST_LEVEL
        if not is_less_ill and has_recovered(since, level=level, scale=scale, width=width, num_relapses=num_relapses):
            well = level_since_onset(level - since, middle=level).num_frames
            self._first[clock, device] = int(self._iterations.newest(well)[0])
            self._began_at[clock, device] = self._residuals.num_frames - well
            self._slow[clock, device] = False
            self._levels[clock, device] = 0.0
            self._num_relapses[clock, device] += 1
            self._scan.begin_anew(clock, device, num_strange=0)
            return
        if moved is not None and moved.level >= SMALLEST_LEVEL:
            self._levels[clock, device], self._scatters[clock, device] = moved.level, moved.scatter
            self._began_at[clock, device] = self._residuals.num_frames - moved.num_frames

    def _renew(self) -> None:
        residuals, scan = self._residuals, self._scan
        healthy = residuals.has_begun & ~self._slow
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
        standing = residuals.standing(_YOUNGEST_STANDING)
        self._differs = standing > LARGEST_STANDING
        for clock, device in np.argwhere(self._differs & ~self._slow):
            count = int(residuals.num_learned[clock, device])
            errors = (standing[clock, device] - LARGEST_STANDING) * math.sqrt(count) / scan.noise.scales[clock, device]
            if errors > scan.height_of_standing(int(clock), count):
                level, num_seen = float(standing[clock, device]), int(residuals.num_seen[clock, device])
                residuals.place(int(clock), int(device), level, self.ill)
                self._call_slow(int(clock), int(device), level, num_seen)

    def _changes(self) -> list[SpeedChange]:
        ratios = self._ratios()
        throughputs, told = throughputs_of(self.clocks, ratios), []
        for device in np.flatnonzero((self._told < 1) | self.ill):
            was = float(self._told[device])
            change = self._change(int(device), float(throughputs[device]), ratios[:, device])
            moved = abs(change.throughput - was) >= max(TOLD_AGAIN_AT, change.margin)
            if moved or change.recovered or was == 1:
                told.append(change)
                self._told[device] = change.throughput
        return told

    def _ratios(self) -> Floats:
        return np.where(self._slow, np.exp(self._levels), 1.0)

    def _errors(self) -> Floats:
        """Standard errors of the levels of all devices, each on the clock that says most."""
        columns, clocks = np.arange(self.num_devices), self._said_most
        scales = np.maximum(self._scan.noise.scales[clocks, columns], self._scatters[clocks, columns])
        count = np.clip(self._residuals.num_frames - self._began_at[clocks, columns], 1, KEPT)
        errors = scales * self._scan.widths.widths[clocks, 0] / np.sqrt(count)
        return np.where(np.isfinite(errors), errors, _ERROR_OF_UNKNOWN)

    def _change(self, device: int, throughput: float, ratios: Floats) -> SpeedChange:
        if throughput < 1:
            self._said_most[device] = int(np.argmax(ratios))
        clock = int(self._said_most[device])
        slow = np.flatnonzero(self._slow[:, device])
        clocks = slow if len(slow) else np.array([clock])
        count = max(self._residuals.num_frames - int(self._began_at[clocks, device].min()), 1)
        error = float(self._errors()[device])
        return SpeedChange(
            device=device,
            throughput=throughput,
            margin=_INTERVAL * error * throughput,
            clock=self.clocks[clock],
            ratios={self.clocks[place]: float(ratios[place]) for place in slow},
            first_iteration=int(self._first[clocks, device].min()),
            num_frames=min(count, KEPT),
            scale=float(self._scan.noise.scales[clock, device]),
            distance=(float(self._levels[clock, device]) or -math.log(self._told[device])) / error,
        )
