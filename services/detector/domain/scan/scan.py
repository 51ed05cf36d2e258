"""Looks through all windows of all rows for one that healthy frames do not explain.

Frame by frame each residual is scaled by its row's noise and clipped, so that a few frames decide nothing however slow.
A window crosses when its mean is beyond what healthy windows of its length reach, which :mod:`widths` has learned, at
the share of the budget that a window has, and when it is slower by enough to matter.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.scan.budget import Budget
from evenkeel.services.detector.domain.scan.noise import RowNoise
from evenkeel.services.detector.domain.scan.residual.tables import arranged, no_floats, no_ints
from evenkeel.services.detector.domain.scan.widths import FRAMES_OF_A_BASKET, Widths
from evenkeel.services.detector.domain.scan.windows import LENGTHS, Windows

FRAMES_TO_DECIDE = 4.0
"""So many frames decide at least: none counts for more than its share of them, however slow it was."""

SECONDS_TO_DECIDE = 0.2
"""Nor do frames that took a row less than this: for so long a healthy one shares its core with whatever passes by."""

SUSPECTED_FOR = 16
"""Frames for which a suspicion lasts."""

_NEVER = -(1 << 40)


@dataclass(slots=True, eq=False)
class Scan:
    """The scan of one table of rows: one row a clock, one column a device.

    Attributes:
        iterations_per_false_alarm: The operator's budget for the whole job.
        noise: Of each row.
        widths: Of healthy windows.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    noise: RowNoise = field(default_factory=RowNoise)
    widths: Widths = field(default_factory=Widths)
    _windows: Windows = field(default_factory=Windows)
    _suspected_at: Ints = field(default_factory=no_ints)
    num_frames: int = 0
    # What a mean must exceed, by clock and length; how unsure an offset makes it, by length and row; how far the newest
    # windows went of what makes a verdict, like that.
    _verdicts: Floats = field(default_factory=no_floats)
    _suspicions: Floats = field(default_factory=no_floats)
    _doubts: Floats = field(default_factory=lambda: np.zeros((len(LENGTHS), 0, 0)))
    _reached: Floats = field(default_factory=lambda: np.zeros((len(LENGTHS), 0, 0)))

    def allot(self, smallest_scales: Floats, num_devices: int) -> None:
        """Begins, with a table of this shape.

        Args:
            smallest_scales: Noise below which no row of a clock is, log units, by clock.
            num_devices: Devices.
        """
        shape = len(smallest_scales), num_devices
        self.noise = RowNoise.of(smallest_scales, num_devices)
        self.widths, self._windows = Widths.of_shape(*shape), Windows.of_shape(*shape)
        self._suspected_at = np.full(shape, _NEVER)
        self._reached, self._doubts = np.zeros((len(LENGTHS), *shape)), np.ones((len(LENGTHS), *shape))
        # Known as soon as a row begins.
        self._verdicts, self._suspicions = (np.full((len(smallest_scales), len(LENGTHS)), np.inf) for _ in range(2))

    def arrange(self, columns: Ints) -> None:
        """Takes these columns of what is known; -1 is a new device."""
        for each in (self.noise, self.widths, self._windows):
            each.arrange(columns)
        self._suspected_at = arranged(self._suspected_at, columns, _NEVER)
        self._doubts, self._reached = arranged(self._doubts, columns, 2.0), arranged(self._reached, columns, 0.0)

    @property
    def suspected(self) -> Bools:
        """Rows under suspicion."""
        return np.asarray(self.num_frames - self._suspected_at <= SUSPECTED_FOR)

    @property
    def evidence(self) -> Floats:
        """Of what makes a verdict that a row is slow, how much its newest windows reached, by row."""
        return np.asarray(self._reached.max(axis=0))

    def begin(self, frame: int, rows: Bools, residuals: Floats, num_learned: Ints) -> None:
        """Begins with what the first frames of some rows show.

        Args:
            frame: Frames so far.
            rows: Those that begin.
            residuals: Around each row's own median; first axis frames.
            num_learned: Frames that each row's offset rests on.
        """
        if not self.num_frames:
            self.num_frames = frame
            self.noise.renew(frame, residuals, calm=rows, known=rows)
        self._forget(rows)
        self._renew_heights(num_learned)

    def observe(self, residuals: Floats, tested: Bools, learned: Bools, seconds: Floats) -> Ints:
        """Takes one frame.

        Args:
            residuals: By row; NaN where nothing was observed, which speaks neither for nor against a row.
            tested: Rows that are healthy so far.
            learned: Of those, rows whose windows say what healthy ones look like.
            seconds: What the frame took each row; infinite where a short time says as much as a long one.

        Returns:
            Frames of the shortest window of each row that crossed; 0 for none.
        """
        self.num_frames += 1
        fewest = np.fmax(FRAMES_TO_DECIDE, SECONDS_TO_DECIDE / seconds)
        # Between lengths: by the shorter one only the longest windows could decide where healthy ones widen fast.
        between = np.clip(np.log2(fewest / LENGTHS[0]), 0, len(LENGTHS) - 1)
        shorter = np.minimum(between.astype(np.int64), len(LENGTHS) - 2)
        heights = self._verdicts.T[:, :, None] * self._doubts
        low, high = (np.take_along_axis(heights, shorter[None] + above, axis=0)[0] for above in (0, 1))
        clip = (low + (high - low) * (between - shorter)) * np.sqrt(np.maximum(fewest, LENGTHS[0])) / fewest
        scaled = residuals / self.noise.scales
        known = np.isfinite(scaled)
        scaled = np.where(known, np.clip(scaled, -clip, clip), 0.0)
        unrest = self.noise.unrest(scaled)
        if self.num_frames % FRAMES_OF_A_BASKET == 0:
            self.widths.release(self.num_frames, is_quiet=not (self.suspected & tested).any())
        windows = np.zeros(residuals.shape, dtype=np.int64)
        for place, sums in self._windows.push(scaled):
            means = sums / np.sqrt(LENGTHS[place] * unrest) / self._doubts[place]
            usable = self._windows.are_whole(place) & tested
            self._reached[place] = np.where(usable, means / self._verdicts[:, place, None], 0.0)
            windows = np.where((self._reached[place] > 1) & (windows == 0), LENGTHS[place], windows)
            strange = usable & (np.abs(means) > self._suspicions[:, place, None])
            self._suspected_at[strange] = self.num_frames
            if self.num_frames % LENGTHS[place] == 0:
                self.widths.see(self.num_frames, place, means, usable & known & learned)
        return windows

    def renew(self, residuals: Floats, tested: Bools, num_learned: Ints) -> None:
        """Learns; to be asked every ``RENEWED_EVERY`` frames.

        Args:
            residuals: Of the newest frames, around each row's own median; first axis frames.
            tested: Rows that are healthy so far.
            num_learned: Frames that each row's offset rests on.
        """
        # Noise is known from the newest frames, so it takes longer until they are beyond doubt.
        calm = tested & (self.num_frames - self._suspected_at >= len(residuals))
        self.noise.renew(self.num_frames, residuals, calm=calm, known=tested)
        self._renew_heights(num_learned)

    def begin_anew(self, clock: int | slice, devices: Ints | int, *, num_strange: int) -> None:
        """Forgets the windows of some rows, and that anybody's in the newest so many frames were healthy."""
        rows = np.zeros(self._suspected_at.shape, dtype=np.bool_)
        rows[clock, devices] = True
        self._forget(rows)
        self.widths.drop(self.num_frames, num_strange)

    def _forget(self, rows: Bools) -> None:
        self._windows.begin_anew(rows)
        self._reached[:, rows] = 0.0

    def width_of_memory(self, num_learned: Ints) -> Floats:
        """The width of windows as long as each row's offset rests on."""
        lengths = np.maximum(num_learned, LENGTHS[0]) / LENGTHS[0]
        places = np.minimum(np.log2(lengths).astype(np.int64), len(LENGTHS) - 1)
        return np.take_along_axis(self.widths.widths, places, axis=1)

    def height_of_standing(self, clock: int, count: int) -> float:
        """What the mean of a job's first frames must exceed to be told, in standard deviations of independent ones."""
        place = min(max(count // LENGTHS[0], 1).bit_length() - 1, len(LENGTHS) - 1)
        return float(self._budget.of_standing(self.widths)[clock, place])

    @property
    def _budget(self) -> Budget:
        num_rows = self._suspected_at.size
        return Budget(iterations_per_false_alarm=self.iterations_per_false_alarm, num_rows=num_rows)

    def _renew_heights(self, num_learned: Ints) -> None:
        self.widths.renew(self.noise.alike, self.noise.num_seen)
        self._verdicts, self._suspicions = self._budget.of_verdict(self.widths), self._budget.of_suspicion(self.widths)
        # An offset is only as sure as the frames that it rests on, and they wander like all others.
        ratio = self.width_of_memory(num_learned)[None] / self.widths.widths.T[:, :, None]
        lengths = np.array(LENGTHS)[:, None, None]
        self._doubts = np.sqrt(1 + lengths / np.maximum(num_learned, 1) * ratio**2)
