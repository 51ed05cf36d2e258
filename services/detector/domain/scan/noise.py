"""How much each row scatters from one frame to the next, usually and now.

What is learned waits as widths do, for a quarter of a young job's age: the first frames of an illness are no noise.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.scan.residual.recent import KEPT
from evenkeel.services.detector.domain.scan.residual.residuals import RENEWED_EVERY
from evenkeel.services.detector.domain.scan.residual.tables import arranged, no_floats

_SHARE, _QUANTILE = 0.87, 1.514
"""This share of normal residuals is within so many standard deviations; tails and lone pauses count for nothing."""

_PSEUDO_FRAMES = 16.0
_LARGEST_ALIKE = 0.95
# Lone residuals far off would hide how much the others are alike.
_REACH = 2.0
_LONGEST_MEMORY = 512
_LONGEST_WAIT = KEPT // 2
_RATE_OF_NOW = 1 / 16
# Noise counts as unusual from so many times the usual variance on.
_UNUSUAL = 1.5
_LARGEST_STEP = 4.0
_SMALLEST_USUAL = 0.25


@dataclass(slots=True, eq=False)
class RowNoise:
    """The noise of a table of rows.

    Attributes:
        scales: Standard deviation of each row's residual in one frame, log units; NaN where nothing is known yet.
        alike: How much of a residual is left in the next one, by clock: the lag-one correlation of calm rows.
        num_seen: Frames that this rests on.
    """

    scales: Floats = field(default_factory=no_floats)
    alike: Floats = field(default_factory=lambda: np.zeros(0))
    num_seen: int = 0
    # Below which no row of a clock is.
    _smallest: Floats = field(default_factory=no_floats)
    _usual_steps: Floats = field(default_factory=no_floats)
    _steps: Floats = field(default_factory=no_floats)
    _before: Floats = field(default_factory=no_floats)
    # Of neighbouring frames, by clock: products of their residuals, and squares.
    _products: Floats = field(default_factory=lambda: np.zeros((2, 0)))

    @classmethod
    def of(cls, smallest: Floats, num_devices: int) -> "RowNoise":
        """Of rows of which nothing is known yet.

        Args:
            smallest: Scale below which no row of a clock is, by clock.
            num_devices: Columns of the table.
        """
        shape = len(smallest), num_devices
        ones, zeros = np.ones(shape), np.zeros(shape)
        return cls(
            scales=np.full(shape, np.nan),
            alike=np.zeros(len(smallest)),
            _smallest=smallest[:, None],
            _usual_steps=ones,
            _steps=ones,
            _before=zeros,
            _products=np.zeros((2, len(smallest))),
        )

    def arrange(self, columns: Ints) -> None:
        """Takes these columns of what is known; -1 is a new one, which is taken to scatter as the job does."""
        known = np.where(np.isnan(self.scales), 0.0, self.scales)
        scales = np.sqrt((known**2).sum(axis=1) / np.maximum((known > 0).sum(axis=1), 1))
        scales = np.where(scales > 0, scales, np.nan)[:, None]
        self.scales = np.where(columns < 0, scales, arranged(self.scales, columns, np.nan))
        self._usual_steps, self._steps = (arranged(each, columns, 1.0) for each in (self._usual_steps, self._steps))
        self._before = arranged(self._before, columns, 0.0)

    def unrest(self, scaled: Floats) -> Floats:
        """How many times its usual variance each row's noise has now, at least 1.

        By the steps between neighbouring frames: a change of level is one step only.

        Args:
            scaled: The residuals of a frame, in scales.
        """
        steps = np.minimum((scaled - self._before) ** 2 / 2, _LARGEST_STEP * self._usual_steps)
        self._before = scaled
        self._steps = self._steps + (steps - self._steps) * _RATE_OF_NOW
        return np.maximum(self._steps / np.maximum(self._usual_steps, _SMALLEST_USUAL) / _UNUSUAL, 1.0)

    def renew(self, frame: int, residuals: Floats, *, calm: Bools, known: Bools) -> None:
        """Learns, every ``RENEWED_EVERY`` frames.

        Args:
            frame: Frames so far.
            residuals: Of the newest frames, around each row's own median; first axis frames.
            calm: Rows that are healthy and under no suspicion.
            known: Rows that are healthy: what the job's scale is taken from.
        """
        usual = np.minimum(self._steps, _LARGEST_STEP * self._usual_steps) - self._usual_steps
        rate = RENEWED_EVERY / min(max(frame, 2 * RENEWED_EVERY), 2 * _LONGEST_MEMORY)
        self._usual_steps = self._usual_steps + np.where(calm, usual * rate, 0.0)
        wait = min(max(frame // 4, RENEWED_EVERY), _LONGEST_WAIT)
        residuals = residuals[: max(len(residuals) - wait, RENEWED_EVERY)]
        count = len(residuals)
        found = np.maximum(_quantile(np.abs(residuals), _SHARE) / _QUANTILE, self._smallest)
        usable = known & np.isfinite(found)
        of_job = np.where(usable, found**2, 0.0).sum(axis=1, keepdims=True)
        of_job = np.maximum(of_job / np.maximum(usable.sum(axis=1, keepdims=True), 1), self._smallest**2)
        own = np.where(np.isfinite(found), found**2, of_job)
        drawn = np.maximum((count * own + _PSEUDO_FRAMES * of_job) / (count + _PSEUDO_FRAMES), of_job / 4)
        rate = RENEWED_EVERY / min(max(frame, RENEWED_EVERY), _LONGEST_MEMORY)
        followed = np.sqrt(self.scales**2 * (1 - rate) + drawn * rate)
        self.scales = np.where(np.isnan(self.scales), np.sqrt(drawn), np.where(calm, followed, self.scales))
        residuals = np.where(calm, residuals, np.nan)
        if not self.num_seen or (frame <= KEPT and np.isfinite(residuals).any()):
            # What frames are measured around is known better now.
            self.num_seen, self._products = 0, np.zeros((2, len(self._smallest)))
        fresh = RENEWED_EVERY if self.num_seen else count
        self._look_for_likeness(residuals[-fresh - 1 :], fresh)

    def _look_for_likeness(self, residuals: Floats, count: int) -> None:
        """Finds :attr:`alike` by so many more frames, and the one before them."""
        reach = _REACH * self.scales
        clipped = np.clip(residuals, -reach, reach)
        products = clipped[1:] * clipped[:-1], (clipped[1:] ** 2 + clipped[:-1] ** 2) / 2
        known = np.isfinite(products[0])
        more = np.array([np.where(known, each, 0.0).sum(axis=(0, 2)) for each in products])
        self.num_seen += count if known.any() else 0
        self._products = self._products + more
        self._products *= min(_LONGEST_MEMORY / max(self.num_seen, 1), 1.0)
        self.num_seen = min(self.num_seen, _LONGEST_MEMORY)
        product, square = self._products
        found = product / np.where(square > 0, square, 1.0)
        # A short series makes noise look less alike than it is (Marriott and Pope 1954).
        found = np.clip(found + (1 + 4 * found) / min(max(self.num_seen, 1), KEPT), 0.0, _LARGEST_ALIKE)
        self.alike = np.where(square > 0, found, self.alike)


def _quantile(values: Floats, share: float) -> Floats:
    """Over the first axis, without what is not there; NaN where nothing is."""
    ordered = np.sort(values, axis=0)
    count = np.isfinite(ordered).sum(axis=0)
    place = share * np.maximum(count - 1, 0)
    lower = place.astype(np.int64)
    upper = np.minimum(lower + 1, np.maximum(count - 1, 0))
    first, second = np.take_along_axis(ordered, lower[None], 0)[0], np.take_along_axis(ordered, upper[None], 0)[0]
    return np.where(count > 0, first + (second - first) * (place - lower), np.nan)
