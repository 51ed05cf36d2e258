"""One residual for all rows: log(observed / expected), less the row's healthy peers, less what is its own by nature.

Illness only slows, and of two processes that share a host's cores one gains what the other loses. So where one host can
move the middle of a row's peers they are no reference while faster than usual: the row is compared with where they
stand or usually stand, whichever is slower. What nobody is any more is not usual: the slowest row says what is.

What a row always has more than its peers is its own offset. It is learned while nothing is suspicious, from frames that
have been behind for a while, and once it is known to one per cent it may drift by three more: illness that creeps in
stays visible. Where a row stood in the long run is kept beside it: of two that diverge it says which one moved.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.memory.state import DERIVED
from evenkeel.services.detector.domain.scan.residual.peers import (
    LARGEST_DRIFT,
    centres_of_peers,
    standing_apart,
    unmoved_centres,
)
from evenkeel.services.detector.domain.scan.residual.recent import KEPT, Recent
from evenkeel.services.detector.domain.scan.residual.tables import (
    arranged,
    mean,
    median,
    more,
    no_bools,
    no_floats,
    no_ints,
)

NUM_TO_BEGIN = 8
"""Frames until the first offsets are known."""

RENEWED_EVERY = 8
"""Frames between two renewals of what is learned; within them everything is frozen."""

LARGEST_MEMORY = 512
"""Frames that an offset rests on at most."""

_SETTLED_AT = 0.01
_SHARE_OF_YOUNG = 0.75
# Learned from what a row does is at most so many of its scales.
_REACH = 2.0
# A peer counts as no farther from the others than so many scales.
_PEERS_REACH = 2.0


# Tables of one row a clock and one column a device: what each number is of a device of which nothing is known.
_TABLES: tuple[tuple[str, type, float], ...] = (
    ("offsets", np.float64, 0.0),
    ("num_learned", np.int64, 0),
    ("num_seen", np.int64, 0),
    ("_anchors", np.float64, 0.0),
    ("_long_run", np.float64, 0.0),
    ("_usual_centres", np.float64, -np.inf),
    ("_is_accepted", np.bool_, False),
    ("_is_placed", np.bool_, False),
)


@dataclass(slots=True, eq=False)
class Residuals:
    """The residuals of one table of rows, a row a clock and a column a device, and what they are measured from.

    Attributes:
        offsets: What each has more than its peers, log units of time.
        num_learned: Frames that each offset rests on.
        num_seen: Frames that each was observed in since it began.
        groups: Of each device: those of one group do the same work, so that they should stand at the same offset.
        is_of_one_host: Whether one host can move the middle of a device's peers.
    """

    offsets: Floats = field(default_factory=no_floats)
    num_learned: Ints = field(default_factory=no_ints)
    num_seen: Ints = field(default_factory=no_ints)
    groups: Floats = field(default_factory=lambda: np.zeros(0))
    is_of_one_host: bool = field(default=True, init=False, metadata=DERIVED)
    _anchors: Floats = field(default_factory=no_floats)
    _long_run: Floats = field(default_factory=no_floats)
    _usual_centres: Floats = field(default_factory=no_floats)
    # Comparing with a lower median and with the slower of two references is not fair on average.
    _bias: Floats = field(default_factory=no_floats)
    _is_accepted: Bools = field(default_factory=no_bools)
    _is_placed: Bools = field(default_factory=no_bools)
    _values: Recent = field(default_factory=Recent)
    _centres: Recent = field(default_factory=Recent)
    # How far from the others a peer counts at most, by clock, as of the newest frame.
    _reach: Floats = field(default_factory=no_floats, metadata=DERIVED)

    @classmethod
    def of_shape(cls, num_clocks: int, num_devices: int) -> "Residuals":
        """Of a table of this shape, of which nothing is known yet."""
        found = cls(
            _bias=np.zeros((num_clocks, 1)),
            _values=Recent.of_shape(num_clocks, 0),
            _centres=Recent.of_shape(num_clocks, 0),
            **{name: np.zeros((num_clocks, 0), dtype=dtype) for name, dtype, _ in _TABLES},
        )
        found.arrange(more(0, num_devices))
        return found

    def arrange(self, columns: Ints) -> None:
        """Takes these columns of what is known; -1 is a new device."""
        for name, _, value in _TABLES:
            setattr(self, name, arranged(getattr(self, name), columns, value))
        self.groups = arranged(self.groups, columns, 0.0)
        self._values.arrange(columns)
        self._centres.arrange(columns)

    def forget(self, devices: Ints) -> None:
        """These columns are other devices now, of which nothing is known."""
        for name, _, value in _TABLES:
            getattr(self, name)[:, devices] = value
        self._values.tables[:, :, devices] = np.nan

    def begin_work(self, devices: Ints) -> None:
        """These devices do other work now: they are to be placed anew, and until then they stand where they did."""
        self.num_seen[:, devices] = 0
        self._is_accepted[:, devices] = self._is_placed[:, devices] = False
        self._values.tables[:, :, devices] = np.nan
        # What was expected of all may have moved with the work of some.
        self._usual_centres[:] = -np.inf

    @property
    def num_frames(self) -> int:
        """Frames so far."""
        return self._values.num_pushed

    @property
    def has_begun(self) -> Bools:
        """Rows whose first offset is known."""
        return np.asarray(self.num_seen >= NUM_TO_BEGIN)

    def observe(self, values: Floats, ill: Bools, levels: Floats, scales: Floats) -> Bools:
        """Takes one frame.

        Args:
            values: Log of observed over expected seconds; NaN where nothing was observed.
            ill: Devices that are no reference for others.
            levels: How much slower than healthy each is known to be, log units; 0 for a healthy one.
            scales: Of each row's noise in one frame; NaN where that is not known yet.

        Returns:
            Rows that have begun with this frame: :meth:`begin` finds where they stand.
        """
        observed: Bools = np.isfinite(values)
        self.num_seen = self.num_seen + observed
        self._values.push(values)
        own = values - self.offsets
        healthy = self._healthy(ill)
        self._reach = _PEERS_REACH * np.nan_to_num(np.median(scales, axis=1, keepdims=True))
        centres = centres_of_peers(own, healthy, self._reach)
        centres = unmoved_centres(own, centres=centres, usual=self._usual_centres, healthy=healthy, scales=scales)
        if np.isnan(centres[:, ~ill]).any():
            # Nobody healthy to compare with: the ill, as far as they are known, or the own past.
            last = centres_of_peers(own - levels, np.ones_like(ill))
            centres = np.where(np.isnan(centres) & ~ill, last, centres)
        self._centres.push(np.where(np.isnan(centres), self._long_run - self.offsets, centres))
        return np.asarray(observed & (self.num_seen == NUM_TO_BEGIN))

    def newest(self, count: int) -> Floats:
        """The residuals of the newest frames, oldest first, by what is known now; NaN for rows that have not begun."""
        found = self._uncorrected(count) - self.offsets - self._bias
        return np.where(self.has_begun, found, np.nan)

    def rises(self, count: int) -> Floats:
        """How far each is above its own long run, in the mean of the newest frames."""
        return mean(self._values.newest(count)) - self._long_run

    def begin(self, rows: Bools, ill: Bools) -> None:
        """Finds the offsets of rows that have begun; ``ill`` as for :meth:`observe`."""
        self._place(rows, ill)
        usual = median(self._centres.newest(NUM_TO_BEGIN))
        self._usual_centres = np.where(rows | np.isinf(self._usual_centres), usual, self._usual_centres)

    def renew(self, calm: Bools, slow: Bools, scales: Floats, widths: Floats) -> None:
        """Learns, every ``RENEWED_EVERY`` frames.

        Args:
            calm: Rows that are healthy and under no suspicion.
            slow: Rows that are ill.
            scales: Of each row's noise in one frame.
            widths: How much wider a window is that is as long as an offset's memory, by row, in those scales.
        """
        is_young = self.num_seen <= KEPT
        rows = self.has_begun & is_young & ~slow & ~self._is_placed
        if rows.any():
            self._place(rows, np.asarray(slow.any(axis=0)))
        # A quarter of a young job's age: who is faster for a while does not stay so.
        slowest = np.fmax.reduce(self._slowest(max(self.num_frames // 4, RENEWED_EVERY)), initial=np.nan)
        if self.num_frames <= KEPT:
            self._usual_centres = np.fmin(median(self._centres.newest()), slowest)
            return
        # What the newest frames show may yet turn out to be illness.
        oldest = slice(0, RENEWED_EVERY)
        found = self.newest(KEPT)[oldest]
        steps = mean(np.clip(found, -_REACH * scales, _REACH * scales))
        learned: Bools = calm & ~is_young & np.isfinite(steps)
        memory = np.minimum(self.num_learned + RENEWED_EVERY, LARGEST_MEMORY)
        rates = RENEWED_EVERY / memory
        # The others move the other way.
        peers = 1 - 1 / max(found.shape[2], 2)
        moved = self.offsets + np.where(learned, steps * rates * peers, 0.0)
        unsettled = learned & (scales * widths / np.sqrt(np.maximum(self.num_learned, 1)) > _SETTLED_AT)
        unsettled &= self.num_learned < LARGEST_MEMORY
        self._anchors = np.where(unsettled, moved, self._anchors)
        self.offsets = np.clip(moved, self._anchors - LARGEST_DRIFT, self._anchors + LARGEST_DRIFT)
        self.num_learned = np.where(learned, memory, self.num_learned)
        past = mean(self._values.newest()[oldest]) - self._long_run
        self._long_run = self._long_run + np.where(learned & np.isfinite(past), past * rates, 0.0)
        centres = median(self._centres.newest(RENEWED_EVERY)) - self._usual_centres
        moved = np.where(np.isfinite(centres), centres * RENEWED_EVERY / LARGEST_MEMORY, 0.0)
        self._usual_centres = np.fmin(self._usual_centres + moved, slowest)

    def begin_anew(self, clock: int, devices: Ints, ill: Bools) -> None:
        """Two devices stand elsewhere now, and that is healthy: their newest frames say where."""
        now = median(self._values.newest(NUM_TO_BEGIN))[clock, devices]
        self._long_run[clock, devices] = now
        self.num_learned[clock, devices] = NUM_TO_BEGIN
        self._is_accepted[clock, devices] = True
        self.offsets[clock, devices] = self.offsets[clock, devices].mean() + now - now.mean()
        self._anchors[clock, devices] = self.offsets[clock, devices]
        self._compare_anew(ill)

    def standing(self, fewest: int) -> Floats:
        """How much slower each is than its peers, by its offset; 0 where that is known to be healthy, or nobody is.

        Args:
            fewest: Frames that a row and its peers were seen in, at least.
        """
        found = standing_apart(self.offsets, self.groups, self.num_seen >= fewest)
        return np.where(np.isnan(found) | self._is_accepted, 0.0, found)

    def hold(self, clock: int, device: int) -> None:
        """A young device is ill: what it shows from now on does not say where it stands."""
        self._is_placed[clock, device] = True

    def place(self, clock: int, device: int, level: float, ill: Bools) -> None:
        """So much of the offset of a device is illness."""
        self._is_placed[clock, device] = True
        if self.offsets.shape[1] == 2:
            # Of a pair each is the other's only peer: offsets are halves of what is between them.
            self._is_placed[clock] = True
            self.offsets[clock] = self.offsets[clock].mean()
        else:
            self.offsets[clock, device] -= level
        self._bias[clock] = 0.0
        self._anchors[clock] = np.where(self._is_placed[clock], self.offsets[clock], self._anchors[clock])
        self._compare_anew(ill)
        usual = median(self._centres.newest())[clock]
        self._usual_centres[clock] = np.where(np.isfinite(usual), usual, self._usual_centres[clock])

    def uncorrected(self, count: int = KEPT) -> Floats:
        """The newest residuals before offsets are taken off, around each row's own median."""
        found = self._uncorrected(count)
        return found - median(found)

    def _uncorrected(self, count: int) -> Floats:
        usual = np.fmin(self._usual_centres, self._slowest(count)) if self.is_of_one_host else -np.inf
        return self._values.newest(count) - np.maximum(self._centres.newest(count), usual)

    def _slowest(self, count: int) -> Floats:
        """Where the slowest stood in each of the newest frames, by clock; NaN where none was observed."""
        return np.fmax.reduce(self._values.newest(count) - self.offsets, axis=2, keepdims=True, initial=np.nan)

    def _healthy(self, ill: Bools) -> Bools:
        """Rows to compare with, by clock: the healthy ones that have begun, or all of those where none has."""
        begun: Bools = self.has_begun & ~ill
        return np.where(begun.any(axis=1, keepdims=True), begun, ~ill)

    def _compare_anew(self, ill: Bools) -> None:
        """Offsets have changed at once: the kept frames are compared by the new ones."""
        centres = centres_of_peers(self._values.tables - self.offsets, self._healthy(ill), self._reach)
        self._centres.tables = np.where(np.isnan(centres), self._long_run - self.offsets, centres)

    def _place(self, rows: Bools, ill: Bools) -> None:
        """Finds where rows stand by the first part of what is kept of them: more of it may turn out to be illness."""
        values = self._values.newest()
        known = np.isfinite(values)
        count = np.maximum((_SHARE_OF_YOUNG * known.sum(axis=0)).astype(np.int64), NUM_TO_BEGIN)
        first = np.where(known.cumsum(axis=0) <= count, values, np.nan)
        # What all have in common, by those of whom it is known where they stand.
        placed = (self.num_learned > 0) & ~ill
        placed = np.where(placed.any(axis=1, keepdims=True), placed, np.ones_like(placed))
        apart = np.where(placed, values - self.offsets, np.nan)
        common = median(np.moveaxis(apart, 2, 0))[:, :, None]
        found = median(first - common)
        rows = rows & np.isfinite(found)
        self.offsets = np.where(rows, found, self.offsets)
        self._anchors = np.where(rows, self.offsets, self._anchors)
        self.num_learned = np.where(rows, count, self.num_learned)
        self._long_run = np.where(rows, median(values), self._long_run)
        self._compare_anew(ill)
        apart = np.where(rows, self._uncorrected(len(values)) - self.offsets, np.nan)
        bias = median(np.moveaxis(apart, 1, 0).reshape(len(self.offsets), -1).T)[:, None]
        self._bias = np.where(np.isfinite(bias), bias, self._bias)
