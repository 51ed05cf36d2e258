"""Which rows of a table are slower than they were, by how much and since when: residuals, scanned, as levels."""

import math
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.memory.state import DERIVED, GIVEN
from evenkeel.services.detector.domain.scan.level import (
    ERRORS,
    SHORTEST,
    level_of,
    level_since_onset,
    moved_level,
    scatter_of,
    stay_of,
)
from evenkeel.services.detector.domain.scan.recovery import has_recovered, may_be_recovering
from evenkeel.services.detector.domain.scan.residual.recent import KEPT, Recent
from evenkeel.services.detector.domain.scan.residual.residuals import RENEWED_EVERY, Residuals
from evenkeel.services.detector.domain.scan.residual.tables import arranged, median, no_bools, no_floats, no_ints
from evenkeel.services.detector.domain.scan.scan import Scan

_YOUNGEST_STANDING = 16
_ERROR_OF_UNKNOWN = 0.03
_TOGETHER = 0.5


# Tables of one row a clock and one column a device: what each number is of a device of which nothing is known.
_TABLES: tuple[tuple[str, type, float], ...] = (
    ("slow", np.bool_, False),
    ("levels", np.float64, 0.0),
    ("_scatters", np.float64, 0.0),
    ("began_at", np.int64, 0),
    ("first_iterations", np.int64, 0),
    ("_num_relapses", np.int64, 0),
    ("_num_moves", np.int64, 0),
    ("_differs", np.bool_, False),
)


@dataclass(slots=True, eq=False)
class RowScan:
    """Judges a table of rows, frame by frame; deterministic, not thread-safe.

    All tables have one row a clock and one column a device, or whatever else is compared.

    Attributes:
        iterations_per_false_alarm: The operator's budget for the whole table.
        smallest_level: Levels below this, log units of time, are nobody's illness.
        largest_standing: What differs by more from the first iteration on does not differ by nature; infinite where
            nature explains everything.
        slow: Which are slow.
        levels: How much, log units of time; 0 for a healthy one.
        hosts: Columns of one number run on one host, which is at fault where several of it slow down together.
        shared: By clock, whether it counts what a host shares among its columns; empty where none does.
        began_at: The frame since which each stands where it does.
        first_iterations: The iteration that showed it first.
        residuals: What is scanned.
        scan: Its windows.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    smallest_level: float = field(metadata=GIVEN)
    largest_standing: float = field(default=math.inf, metadata=GIVEN)
    slow: Bools = field(default_factory=no_bools)
    levels: Floats = field(default_factory=no_floats)
    began_at: Ints = field(default_factory=no_ints)
    first_iterations: Ints = field(default_factory=no_ints)
    hosts: Ints = field(default_factory=no_ints, metadata=DERIVED)
    shared: tuple[bool, ...] = field(default=(), metadata=DERIVED)
    residuals: Residuals = field(default_factory=Residuals)
    scan: Scan = field(init=False)
    _iterations: Recent = field(default_factory=Recent)
    _scatters: Floats = field(default_factory=no_floats)
    _num_relapses: Ints = field(default_factory=no_ints)
    _num_moves: Ints = field(default_factory=no_ints)
    _differs: Bools = field(default_factory=no_bools)

    def __post_init__(self) -> None:
        self.scan = Scan(self.iterations_per_false_alarm)

    def allot(self, num_devices: int, smallest_scales: Floats) -> None:
        """Begins, with nothing known.

        Args:
            num_devices: Columns.
            smallest_scales: Noise below which no row of a clock is, log units, by clock.
        """
        shape = len(smallest_scales), num_devices
        self.residuals = Residuals.of_shape(*shape)
        self.scan.allot(smallest_scales, num_devices)
        self._iterations = Recent()
        for name, kind, value in _TABLES:
            setattr(self, name, np.full(shape, value, dtype=kind))

    def arrange(self, columns: Ints) -> None:
        """Takes these columns of what is known; -1 is a new one."""
        self.residuals.arrange(columns)
        self.scan.arrange(columns)
        for name, _, value in _TABLES:
            setattr(self, name, arranged(getattr(self, name), columns, value))

    def begin_work(self, columns: Ints) -> None:
        """These do other work from now on.

        Who is ill or suspected stays where its offset says: more time for another share may be all that speaks against
        it. The others are placed anew.
        """
        known = columns[self.residuals.num_seen[:, columns].any(axis=0)]
        self.residuals.begin_work(known[~(self.ill | self.scan.suspected.any(axis=0))[known]])
        self.scan.begin_anew(slice(None), known, num_strange=0)

    def call_healthy(self, columns: Ints) -> None:
        """Whatever these did before, they are not known to be slow."""
        for name in ("slow", "levels", "_num_relapses", "_num_moves"):
            getattr(self, name)[:, columns] = 0
        self.scan.begin_anew(slice(None), columns, num_strange=0)

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what is kept was by then."""
        for known in (self._iterations.tables, self.first_iterations):
            np.minimum(known, iteration, out=known)

    @property
    def num_frames(self) -> int:
        """Frames so far."""
        return self.residuals.num_frames

    @property
    def iterations(self) -> Floats:
        """Of the newest frames, oldest first."""
        return self._iterations.newest()

    @property
    def ill(self) -> Bools:
        """Columns that are slow on some clock."""
        return np.asarray(self.slow.any(axis=0))

    @property
    def evidence(self) -> Floats:
        """Of what makes a verdict that a column is slow, how much its newest frames reached."""
        return np.asarray(self.scan.evidence.max(axis=0) ** 2)

    @property
    def errors(self) -> Floats:
        """Standard errors of the levels."""
        errors = self._scales / np.sqrt(np.clip(self.num_frames - self.began_at, 1, KEPT))
        return np.where(np.isfinite(errors), errors, _ERROR_OF_UNKNOWN)

    @property
    def _scales(self) -> Floats:
        """How much a frame scatters, as if all were independent: as healthy ones, or as an ill one has shown."""
        return np.maximum(self.scan.noise.scales * self.scan.widths.widths[:, :1], self._scatters)

    def observe(self, iteration: int, log_ratios: Floats, seconds: float = math.inf) -> None:
        """Takes one frame, and finds who is slow now and who is no more.

        Args:
            iteration: Its iteration.
            log_ratios: Log of observed over expected; NaN for not observed.
            seconds: What its work is expected to take; infinite where a short time says as much as a long one.
        """
        residuals, scan = self.residuals, self.scan
        begun = residuals.observe(log_ratios, self.ill, self.levels, scan.noise.scales)
        self._iterations.push(np.array(float(iteration)))
        if begun.any():
            residuals.begin(begun, self.ill)
            scan.begin(self.num_frames, begun, residuals.uncorrected(), residuals.num_learned)
        tested = residuals.has_begun & ~self.slow
        if scan.num_frames in (0, self.num_frames):
            return
        own_seconds = seconds * np.exp(log_ratios)
        windows = scan.observe(residuals.newest(1)[0], tested, tested & ~self._differs, own_seconds)
        newest = residuals.newest(KEPT if windows.any() else 1)
        for clock, device in np.argwhere(windows):
            self._decide(int(clock), int(device), int(windows[clock, device]), newest[:, clock])
        for clock, device in np.argwhere(self.slow):
            self._see_where_it_stands(int(clock), int(device))
        if self.num_frames % RENEWED_EVERY == 0:
            self._renew()

    def _decide(self, clock: int, device: int, window: int, newest: Floats) -> None:
        """A window has crossed: the device is slow, unless its only peer is what moved, or its host is."""
        middles, recent = median(newest[-window:]), newest[-window:, device]
        middle = float(middles[device])
        if middle < self.smallest_level / 2:
            return  # A few frames have made all of it.
        if self.shared and self.shared[clock] and self._is_its_host(clock, device, middles):
            return
        peers = np.setdiff1d(np.flatnonzero(~self.ill & np.isfinite(newest[-1])), device)
        num_devices = self.slow.shape[1]
        if len(peers) < 2 and num_devices > 1:
            peer = int(peers[0]) if len(peers) else int(np.flatnonzero(np.arange(num_devices) != device)[0])
            rises = self.residuals.rises(min(window, KEPT))[clock] - self.levels[clock]
            if rises[device] + rises[peer] < 0:
                self._peer_became_faster(clock, device, peer)
                return
        # Most of the window may be from before.
        middle = max(middle, float(np.nanmedian(recent[-max(SHORTEST, window // 4) :])))
        found = level_since_onset(newest[:, device], middle=middle)
        if found.level >= self.smallest_level:
            self._call_slow(clock, device, found.level, found.num_frames)

    def _is_its_host(self, clock: int, device: int, middles: Floats) -> bool:
        """Whether others of its host have moved half as far, and that is all there is, or some of it have not."""
        here = self.hosts == self.hosts[device]
        others = here & ~self.slow[clock] & (np.arange(len(here)) != device)
        moved = middles[others] >= _TOGETHER * middles[device]
        return bool(moved.any() and (here.all() or not moved.all()))

    def _call_slow(self, clock: int, device: int, level: float, num_frames: int) -> None:
        self.slow[clock, device] = True
        self.residuals.hold(clock, device)
        self.levels[clock, device] = level
        self.began_at[clock, device] = self.num_frames - num_frames
        self.first_iterations[clock, device] = int(self._iterations.newest(num_frames)[0])
        self.scan.begin_anew(clock, device, num_strange=num_frames)

    def _peer_became_faster(self, clock: int, device: int, peer: int) -> None:
        """Both stand elsewhere now; where a peer that was ill does is looked at with each frame."""
        if self.slow[clock, peer]:
            self.scan.begin_anew(clock, device, num_strange=0)
            return
        both = np.array([device, peer])
        self.residuals.begin_anew(clock, both, self.ill)
        self.scan.begin_anew(clock, both, num_strange=RENEWED_EVERY)

    def _see_where_it_stands(self, clock: int, device: int) -> None:
        """Whether an ill device has recovered, or is slower or less slow than it was."""
        count = min(self.num_frames - int(self.began_at[clock, device]), KEPT)
        since = self.residuals.newest(count)[:, clock, device]
        level, num_relapses = float(self.levels[clock, device]), int(self._num_relapses[clock, device])
        is_ill = self._iterations.newest() >= self.first_iterations[clock, device]
        self._scatters[clock, device] = scatter_of(self.residuals.newest(KEPT)[is_ill, clock, device])
        scale, smallest = float(self._scales[clock, device]), self.smallest_level
        moved = moved_level(since, level=level, scale=scale, smallest=smallest)
        is_still_ill = moved is not None and moved.level - ERRORS * scale / math.sqrt(moved.num_frames) > smallest
        if not is_still_ill and has_recovered(
            since, level=level, scale=scale, num_relapses=num_relapses, smallest=smallest
        ):
            well = level_since_onset(level - since, middle=level).num_frames
            self.first_iterations[clock, device] = int(self._iterations.newest(well)[0])
            self.began_at[clock, device] = self.num_frames - well
            self.slow[clock, device] = False
            self.levels[clock, device] = 0.0
            self._num_relapses[clock, device] += 1
            self.scan.begin_anew(clock, device, num_strange=0)
            return
        stay = stay_of(num_relapses + int(self._num_moves[clock, device]))
        if moved is not None and is_still_ill and moved.num_frames >= stay:
            self.levels[clock, device] = moved.level
            self.began_at[clock, device] = self.num_frames - moved.num_frames
            self._num_moves[clock, device] += 1

    def _renew(self) -> None:
        residuals, scan = self.residuals, self.scan
        healthy = residuals.has_begun & ~self.slow
        widths = scan.width_of_memory(residuals.num_learned)
        residuals.renew(healthy & ~scan.suspected, self.slow, scan.noise.scales, widths)
        if math.isfinite(self.largest_standing):
            self._look_at_standing()
        scan.renew(residuals.uncorrected(), healthy, residuals.num_learned)
        newest = residuals.newest(KEPT)
        for clock, device in np.argwhere(self.slow):
            count = self.num_frames - int(self.began_at[clock, device])
            since = newest[-min(count, KEPT) :, clock, device]
            if np.isfinite(since).any() and not may_be_recovering(since, level=float(self.levels[clock, device])):
                found = level_of(since)
                self.levels[clock, device] = max(found.level, self.smallest_level)

    def _look_at_standing(self) -> None:
        """What has differed from the first iteration on by more than nature explains."""
        residuals, scan, largest = self.residuals, self.scan, self.largest_standing
        standing = residuals.standing(_YOUNGEST_STANDING)
        self._differs = standing > largest
        for clock, device in np.argwhere(self._differs & ~self.slow):
            count = int(residuals.num_learned[clock, device])
            errors = (standing[clock, device] - largest) * math.sqrt(count) / scan.noise.scales[clock, device]
            if errors > scan.height_of_standing(int(clock), count):
                level, num_seen = float(standing[clock, device]), int(residuals.num_seen[clock, device])
                residuals.place(int(clock), int(device), level, self.ill)
                self._call_slow(int(clock), int(device), level, num_seen)
