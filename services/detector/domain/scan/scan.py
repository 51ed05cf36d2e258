"""Looks through all windows of all rows for one that healthy frames do not explain.

Frame by frame each residual is scaled by its row's noise and clipped, so that a few frames decide nothing however slow.
A window crosses when its mean is beyond what healthy windows of its length reach, which :mod:`widths` has learned, at
the share of the budget that a window has, and when it is slower by enough to matter.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.scan.budget import Budget
from evenkeel.services.detector.domain.scan.noise import RowNoise
from evenkeel.services.detector.domain.scan.widths import FRAMES_OF_A_BASKET, Widths
from evenkeel.services.detector.domain.scan.windows import LENGTHS, Windows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FRAMES_TO_DECIDE = 6
"""A frame counts at most for this part of what the shortest window must exceed, however slow it was."""

SUSPECTED_FOR = 16
"""Frames for which a suspicion lasts."""

_NEVER = -(1 << 40)


@dataclass(frozen=True, slots=True)
class Crossings:
    """What a frame decided.

    Attributes:
        windows: Frames of the shortest window of each row that crossed; 0 for none.
        sizes: How far it is beyond what it had to exceed, as a ratio.
    """

    windows: Ints
    sizes: Floats


class Scan:
    """The scan of one table of rows: one row a clock, one column a device.

    Args:
        smallest_scales: Noise below which no row of a clock is, log units, by clock.
        num_devices: Devices.
        iterations_per_false_alarm: The operator's budget for the whole job.

    Attributes:
        noise: Of each row.
        widths: Of healthy windows.
    """

    def __init__(self, smallest_scales: Floats, num_devices: int, *, iterations_per_false_alarm: float) -> None:
        shape = len(smallest_scales), num_devices
        self.noise = RowNoise(smallest_scales, num_devices)
        self.widths = Widths(shape)
        self._windows = Windows(shape)
        self._budget = Budget(iterations_per_false_alarm=iterations_per_false_alarm, num_rows=shape[0] * shape[1])
        self._suspected_at: Ints = np.full(shape, _NEVER)
        self._num_frames = 0
        self._renew_heights(np.ones(shape, dtype=np.int64))

    @property
    def suspected(self) -> Bools:
        """Rows under suspicion."""
        return np.asarray(self._num_frames - self._suspected_at <= SUSPECTED_FOR)

    def begin(self, frame: int, residuals: Floats, num_learned: Ints) -> None:
        """Begins with what the first frames show.

        Args:
            frame: Frames so far.
            residuals: Around each row's own median; first axis frames.
            num_learned: Frames that each row's offset rests on.
        """
        self._num_frames = frame
        everybody = np.ones(num_learned.shape, dtype=np.bool_)
        self.noise.renew(frame, residuals, calm=everybody, known=everybody)
        self._renew_heights(num_learned)

    def observe(self, residuals: Floats, tested: Bools, learned: Bools) -> Crossings:
        """Takes one frame.

        Args:
            residuals: By row; NaN where nothing was observed, which speaks neither for nor against a row.
            tested: Rows that are healthy so far.
            learned: Of those, rows whose windows say what healthy ones look like.
        """
        self._num_frames += 1
        clip = self.clips[:, None]
        known = np.isfinite(residuals)
        scaled = np.where(known, np.clip(residuals / self.noise.scales, -clip, clip), 0.0)
        unrest = self.noise.unrest(scaled)
        if self._num_frames % FRAMES_OF_A_BASKET == 0:
            self.widths.release(self._num_frames, is_quiet=not (self.suspected & tested).any())
        windows, sizes = np.zeros(residuals.shape, dtype=np.int64), np.zeros(residuals.shape)
        for place, sums in self._windows.push(scaled):
            means = sums / np.sqrt(LENGTHS[place] * unrest) / self._doubts[place]
            usable = self._windows.are_whole(place) & tested
            crossed = usable & (means > self._verdicts[:, place, None])
            sizes = np.where(crossed & (windows == 0), means / self._verdicts[:, place, None], sizes)
            windows = np.where(crossed & (windows == 0), LENGTHS[place], windows)
            strange = usable & (np.abs(means) > self._suspicions[:, place, None])
            self._suspected_at[strange] = self._num_frames
            if self._num_frames % LENGTHS[place] == 0:
                self.widths.see(self._num_frames, place, means, usable & known & learned)
        return Crossings(windows, sizes)

    def renew(self, residuals: Floats, tested: Bools, num_learned: Ints) -> None:
        """Learns; to be asked every ``RENEWED_EVERY`` frames.

        Args:
            residuals: Of the newest frames, around each row's own median; first axis frames.
            tested: Rows that are healthy so far.
            num_learned: Frames that each row's offset rests on.
        """
        # Noise is known from the newest frames, so it takes longer until they are beyond doubt.
        calm = tested & (self._num_frames - self._suspected_at >= len(residuals))
        self.noise.renew(self._num_frames, residuals, calm=calm, known=tested)
        self._renew_heights(num_learned)

    def begin_anew(self, clock: int, devices: Ints | int, *, num_strange: int) -> None:
        """Forgets the windows of some rows, and that anybody's in the newest so many frames were healthy."""
        self._windows.begin_anew(clock, devices)
        self.widths.drop(self._num_frames, num_strange)

    def width_of_memory(self, num_learned: Ints) -> Floats:
        """The width of windows as long as each row's offset rests on."""
        lengths = np.maximum(num_learned, LENGTHS[0]) / LENGTHS[0]
        places = np.minimum(np.log2(lengths).astype(np.int64), len(LENGTHS) - 1)
        return np.take_along_axis(self.widths.widths, places, axis=1)

    def height_of_standing(self, clock: int, count: int) -> float:
        """What the mean of a job's first frames must exceed to be told, in standard deviations of independent ones."""
        place = min(max(count // LENGTHS[0], 1).bit_length() - 1, len(LENGTHS) - 1)
        heights = self.widths.widths * self._budget.of_standing(self.widths.freedoms)
        return float(heights[clock, place])

    @property
    def clips(self) -> Floats:
        """What a frame counts at most, in scales of its row's noise, by clock."""
        return np.asarray(self._verdicts[:, 0] * np.sqrt(LENGTHS[0]) / FRAMES_TO_DECIDE)

    def _renew_heights(self, num_learned: Ints) -> None:
        self.widths.renew()
        widths, freedoms = self.widths.widths, self.widths.freedoms
        self._verdicts: Floats = np.maximum(widths * self._budget.of_verdict(freedoms), self.widths.farthest)
        self._suspicions: Floats = widths * self._budget.of_suspicion(freedoms)
        # An offset is only as sure as the frames that it rests on, and they wander like all others.
        ratio = self.width_of_memory(num_learned)[None] / widths.T[:, :, None]
        lengths = np.array(LENGTHS)[:, None, None]
        self._doubts: Floats = np.sqrt(1 + lengths / np.maximum(num_learned, 1) * ratio**2)
