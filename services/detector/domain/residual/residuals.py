"""One residual for all rows: log(observed / expected), less the row's healthy peers, less what is its own by nature.

Peers that are faster than usual are no reference: illness only slows, and of two processes that share a host's cores
one gains what the other loses. So a row is compared with where its peers stand, or usually stand, whichever is slower.

What a row always has more than its peers is its own offset. It is learned while nothing is suspicious, from frames that
have been behind for a while, and once it is known to one per cent it may drift by three more: illness that creeps in
stays visible. Where a row stood in the long run is kept beside it: of two that diverge it says which one moved.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.residual.peers import centres_of_peers
from evenkeel.services.detector.domain.residual.recent import KEPT, Recent, grown

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NUM_TO_BEGIN = 8
"""Frames until the first offsets are known."""

RENEWED_EVERY = 8
"""Frames between two renewals of what is learned; within them everything is frozen."""

LARGEST_MEMORY = 512
"""Frames that an offset rests on at most."""

_LARGEST_DRIFT = 0.03
_SETTLED_AT = 0.01
_SHARE_OF_YOUNG = 0.75
# Learned from what a row does is at most so many of its scales.
_REACH = 2.0


def _none() -> Floats:
    return np.zeros((0, 0))


@dataclass(slots=True, eq=False)
class Residuals:
    """The residuals of one table of rows, and what they are measured from.

    All tables have one row a clock and one column a device.

    Attributes:
        offsets: What each has more than its peers, log units of time.
        num_learned: Frames that each offset rests on.
    """

    offsets: Floats = field(default_factory=_none)
    num_learned: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    _anchors: Floats = field(default_factory=_none)
    _long_run: Floats = field(default_factory=_none)
    _usual_centres: Floats = field(default_factory=_none)
    # Comparing with a lower median and with the slower of two references is not fair on average.
    _bias: Floats = field(default_factory=_none)
    _is_accepted: Bools = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))
    _is_placed: Bools = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))
    _values: Recent = field(default_factory=Recent)
    _centres: Recent = field(default_factory=Recent)

    @classmethod
    def of_shape(cls, num_clocks: int, num_devices: int) -> "Residuals":
        """Of a table of this shape, of which nothing is known yet."""
        shape = num_clocks, num_devices
        return cls(
            offsets=np.zeros(shape),
            num_learned=np.zeros(shape, dtype=np.int64),
            _anchors=np.zeros(shape),
            _long_run=np.zeros(shape),
            _usual_centres=np.full(shape, -np.inf),
            _bias=np.zeros((num_clocks, 1)),
            _is_accepted=np.zeros(shape, dtype=np.bool_),
            _is_placed=np.zeros(shape, dtype=np.bool_),
            _values=Recent.of_shape(*shape),
            _centres=Recent.of_shape(*shape),
        )

    def grow(self, count: int) -> None:
        """So many more devices, of which nothing is known."""
        self.offsets, self._anchors = grown(self.offsets, count, 0.0), grown(self._anchors, count, 0.0)
        self._long_run = grown(self._long_run, count, 0.0)
        self._usual_centres = grown(self._usual_centres, count, -np.inf)
        more = ((0, 0), (0, count))
        self.num_learned = np.pad(self.num_learned, more)
        self._is_accepted, self._is_placed = np.pad(self._is_accepted, more), np.pad(self._is_placed, more)
        self._values.grow(count)
        self._centres.grow(count)

    def forget(self, devices: Ints) -> None:
        """These columns are other devices now, of which nothing is known."""
        for table in (self.offsets, self._anchors, self._long_run):
            table[:, devices] = 0.0
        self.num_learned[:, devices] = 0
        self._is_accepted[:, devices] = self._is_placed[:, devices] = False
        self._values.tables[:, :, devices] = np.nan

    @property
    def num_frames(self) -> int:
        """Frames so far."""
        return self._values.num_pushed

    @property
    def has_begun(self) -> bool:
        """The first offsets are known."""
        return self.num_frames >= NUM_TO_BEGIN

    def observe(self, values: Floats, ill: Bools, levels: Floats) -> None:
        """Takes one frame.

        Args:
            values: Log of observed over expected seconds; NaN where nothing was observed.
            ill: Devices that are no reference for others.
            levels: How much slower than healthy each is known to be, log units; 0 for a healthy one.
        """
        own = values - self.offsets
        centres = np.array([centres_of_peers(row, ~ill) for row in own])
        if np.isnan(centres[:, ~ill]).any():
            # Nobody healthy to compare with: the ill, as far as they are known, or the own past.
            allowed = own - levels
            last = np.array([centres_of_peers(row, np.ones_like(ill)) for row in allowed])
            centres = np.where(np.isnan(centres) & ~ill, last, centres)
        centres = np.where(np.isnan(centres), self._long_run - self.offsets, centres)
        self._values.push(values)
        self._centres.push(centres)

    def newest(self, count: int) -> Floats:
        """The residuals of the newest frames, oldest first, by what is known now."""
        return self._uncorrected(count) - self.offsets - self._bias

    def rises(self, count: int) -> Floats:
        """How far each is above its own long run, in the mean of the newest frames."""
        return _mean(self._values.newest(count)) - self._long_run

    def begin(self) -> None:
        """Finds the first offsets, in the frame that makes it :attr:`has_begun`."""
        self._place_all(NUM_TO_BEGIN)
        self._usual_centres = _median(self._centres.newest(NUM_TO_BEGIN))

    def renew(self, calm: Bools, slow: Bools, scales: Floats, widths: Floats) -> None:
        """Learns, every ``RENEWED_EVERY`` frames.

        Args:
            calm: Rows that are healthy and under no suspicion.
            slow: Rows that are ill.
            scales: Of each row's noise in one frame.
            widths: How much wider a window is that is as long as an offset's memory, by row, in those scales.
        """
        count = self.num_frames
        if count <= KEPT:
            self._place_all(max(NUM_TO_BEGIN, int(_SHARE_OF_YOUNG * count)), keep=slow | self._is_placed)
            self._usual_centres = _median(self._centres.newest(count))
            return
        # What the newest frames show may yet turn out to be illness.
        oldest = slice(0, RENEWED_EVERY)
        found = self.newest(KEPT)[oldest]
        steps = _mean(np.clip(found, -_REACH * scales, _REACH * scales))
        learned: Bools = calm & np.isfinite(steps)
        memory = np.minimum(self.num_learned + RENEWED_EVERY, LARGEST_MEMORY)
        rates = RENEWED_EVERY / memory
        # The others move the other way.
        peers = 1 - 1 / max(found.shape[2], 2)
        moved = self.offsets + np.where(learned, steps * rates * peers, 0.0)
        unsettled = learned & (scales * widths / np.sqrt(np.maximum(self.num_learned, 1)) > _SETTLED_AT)
        unsettled &= self.num_learned < LARGEST_MEMORY
        self._anchors = np.where(unsettled, moved, self._anchors)
        self.offsets = np.clip(moved, self._anchors - _LARGEST_DRIFT, self._anchors + _LARGEST_DRIFT)
        self.num_learned = np.where(learned, memory, self.num_learned)
        past = _mean(self._values.newest(KEPT)[oldest]) - self._long_run
        self._long_run = self._long_run + np.where(learned & np.isfinite(past), past * rates, 0.0)
        centres = _median(self._centres.newest(RENEWED_EVERY)) - self._usual_centres
        self._usual_centres = self._usual_centres + np.where(
            np.isfinite(centres), centres * RENEWED_EVERY / LARGEST_MEMORY, 0.0
        )

    def begin_anew(self, clock: int, devices: Ints) -> None:
        """Two devices stand elsewhere now, and that is healthy: their newest frames say where."""
        now = _median(self._values.newest(NUM_TO_BEGIN))[clock, devices]
        self._long_run[clock, devices] = now
        self.num_learned[clock, devices] = NUM_TO_BEGIN
        self._is_accepted[clock, devices] = True
        self._move(clock, devices, self.offsets[clock, devices].mean() + now - now.mean())

    def standing(self) -> Floats:
        """How much slower each is than its peers, by its offset; 0 where that is known to be healthy, or nobody is."""
        everybody = np.ones(self.offsets.shape[1], dtype=np.bool_)
        centres = np.array([centres_of_peers(row, everybody) for row in self.offsets])
        return np.where(np.isnan(centres) | self._is_accepted, 0.0, self.offsets - centres)

    def place(self, clock: int, device: int) -> None:
        """The offset of a device is illness: it is that of its peers."""
        # Of a pair each is the other's only peer: offsets are halves of what is between them.
        pair = self.offsets.shape[1] == 2
        devices = np.arange(2) if pair else np.array([device])
        level = self.offsets[clock].mean() if pair else self.offsets[clock, device] - self.standing()[clock, device]
        self._is_placed[clock, devices] = True
        self._bias[clock] = 0.0
        self._move(clock, devices, np.full(len(devices), level))

    def uncorrected(self, count: int = KEPT) -> Floats:
        """The newest residuals before offsets are taken off, around each row's own median."""
        found = self._uncorrected(count)
        return found - _median(found)

    def _uncorrected(self, count: int) -> Floats:
        references = np.maximum(self._centres.newest(count), self._usual_centres)
        return self._values.newest(count) - references

    def _move(self, clock: int, devices: Ints, offsets: Floats) -> None:
        """Offsets that change at once: the kept frames are compared by the new ones."""
        self.offsets[clock, devices] = self._anchors[clock, devices] = offsets
        everybody = np.ones(self.offsets.shape[1], dtype=np.bool_)
        for frame, values in enumerate(self._values.tables):
            centres = centres_of_peers(values[clock] - self.offsets[clock], everybody)
            self._centres.tables[frame, clock] = np.where(
                np.isnan(centres), self._long_run[clock] - self.offsets[clock], centres
            )
        usual = _median(self._centres.newest())[clock]
        self._usual_centres[clock] = np.where(np.isfinite(usual), usual, self._usual_centres[clock])

    def _place_all(self, count: int, *, keep: Bools | None = None) -> None:
        """Offsets, bias and long run from the first so many frames that are kept."""
        values = self._values.newest()[:count]
        found = _median(values - _median(values.swapaxes(0, 2)).T[:, :, None])
        found = np.where(np.isfinite(found), found, 0.0)
        kept = np.zeros_like(self._is_placed) if keep is None else keep
        self.offsets = np.where(kept, self.offsets, found)
        self._anchors = np.where(kept, self._anchors, self.offsets)
        self.num_learned = np.where(kept & (self.num_learned > 0), self.num_learned, count)
        apart = self._uncorrected(len(values)) - self.offsets
        apart = np.where(kept, np.nan, apart)
        bias = _median(apart.swapaxes(0, 1).reshape(len(self.offsets), -1).T)[:, None]
        self._bias = np.where(np.isfinite(bias), bias, self._bias)
        past = _median(values)
        self._long_run = np.where(np.isfinite(past), past, 0.0)


def _median(values: Floats) -> Floats:
    """Over the first axis, without what is not there; NaN where nothing is."""
    ordered = np.sort(values, axis=0)
    count = np.isfinite(ordered).sum(axis=0)
    lower, upper = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(ordered) - 1)
    found = (np.take_along_axis(ordered, lower[None], 0)[0] + np.take_along_axis(ordered, upper[None], 0)[0]) / 2
    return np.where(count > 0, found, np.nan)


def _mean(values: Floats) -> Floats:
    """The same for the mean."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    found: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found
