"""What healthy windows of each length look like, read off the job's own.

The width of a length is the root mean square of its windows, in units of what independent frames would give: 1 where
nothing hangs together, more where noise wanders, whatever the way in which it does. Few windows of a long length are
seen, so its width is drawn to what the shorter ones foretell: it goes on growing as it did from the one before to the
last, give or take some. Of the shortest it is what frames that are so much alike their neighbours make, as far as that
is known. How unsure a width is shrinks with what was seen; windows alike their neighbours, as those of wandering noise
are, count for less. The fourth moment shows tails that are not normal; where they are much heavier than it can tell,
the farthest window seen says so.

What is learned waits: up to 256 frames, a quarter of a young job's age. What comes under suspicion meanwhile, or is
told, is not learned.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.scan.residual.tables import arranged, no_floats
from evenkeel.services.detector.domain.scan.windows import LENGTHS

FRAMES_OF_A_BASKET = 16
"""Windows that end in so many frames in a row wait together."""

_NUM_BASKETS = 16
_PRIOR_WIDTH, _PRIOR_SPREAD = 1.2, 1 / 40
_LARGEST_SPREAD_OF_LIKENESS = 0.2
_GROWTH, _SPREAD_OF_GROWTH = 0.12, 0.15
_LARGEST_GROWTH = 0.5 * np.log(2.0)
_PRIOR_TAIL, _PRIOR_WINDOWS_OF_TAIL = 0.3, 32.0
_LEAST_TAIL, _LARGEST_TAIL = 1e-3, 0.3
_LARGEST_MEMORY = 4096.0
_FADES = 1 / 2048
_MEAN_OF = 8.0
_STEP = 0.01


@dataclass(slots=True, eq=False)
class Widths:
    """Learns the widths of one job's windows, by clock and length.

    Attributes:
        widths: One row a clock, one column a length.
        spreads: Variance of the logarithm of each, as unsure as it is.
        tails: Excess of the fourth moment of each.
        farthest: The farthest healthy window of each, fading.
    """

    widths: Floats = field(init=False, default_factory=no_floats)
    spreads: Floats = field(init=False, default_factory=no_floats)
    tails: Floats = field(init=False, default_factory=no_floats)
    farthest: Floats = field(default_factory=no_floats)
    _counts: Floats = field(default_factory=no_floats)
    _squares: Floats = field(default_factory=no_floats)
    _fourths: Floats = field(default_factory=no_floats)
    # What waits: how many, their squares, those squared, the farthest.
    _waiting: Floats = field(default_factory=lambda: np.zeros((4, _NUM_BASKETS, 0, 0)))
    # Windows are seen around the mean of their row's newest.
    _means: Floats = field(default_factory=lambda: np.zeros((len(LENGTHS), 0, 0)))
    _num_in_means: Floats = field(default_factory=lambda: np.zeros((len(LENGTHS), 0, 0)))

    @classmethod
    def of_shape(cls, num_clocks: int, num_devices: int) -> "Widths":
        """Of windows of a table of this shape, of which nothing is known yet."""
        kinds = num_clocks, len(LENGTHS)
        means = len(LENGTHS), num_clocks, num_devices
        found = cls(
            farthest=np.zeros(kinds),
            _counts=np.zeros(kinds),
            _squares=np.zeros(kinds),
            _fourths=np.zeros(kinds),
            _waiting=np.zeros((4, _NUM_BASKETS, *kinds)),
            _means=np.zeros(means),
            _num_in_means=np.zeros(means),
        )
        found.renew(np.zeros(num_clocks), 1)
        return found

    @property
    def num_seen(self) -> Floats:
        """Windows that the widths and the farthest rest on."""
        return self._counts

    def arrange(self, columns: Ints) -> None:
        """Takes these columns of what is known; -1 is a new one."""
        self._means = arranged(self._means, columns, 0.0)
        self._num_in_means = arranged(self._num_in_means, columns, 0.0)

    @property
    def _share(self) -> float:
        # Residuals of devices compared with one another are not independent.
        num_devices: int = self._means.shape[-1]
        return 1 - 1 / num_devices if num_devices > 1 else 1.0

    def see(self, frame: int, place: int, windows: Floats, healthy: Bools) -> None:
        """Takes windows of one length that have just ended.

        Args:
            frame: Frames so far.
            place: Of the length in ``LENGTHS``.
            windows: Their means, in units of what independent frames would give, by row.
            healthy: Rows that are ones to learn from.
        """
        counts, means = self._num_in_means[place], self._means[place]
        apart = windows - means
        seen = healthy & (counts > 0)
        around = apart * np.sqrt(counts / (counts + 1))
        means[healthy] += (apart / (counts + 1))[healthy]
        counts[healthy] = np.minimum(counts + 1, _MEAN_OF)[healthy]
        basket = self._waiting[:, frame // FRAMES_OF_A_BASKET % _NUM_BASKETS, :, place]
        basket[0] += self._share * seen.sum(axis=1)
        squares = np.where(seen, around**2, 0.0)
        basket[1] += self._share * squares.sum(axis=1)
        basket[2] += self._share * (squares**2).sum(axis=1)
        # Of 0 and -0 either may pass for the larger: a snapshot would differ by that.
        basket[3] = np.maximum(basket[3], np.where(seen, around, 0.0).max(axis=1)) + 0.0

    def release(self, frame: int, *, is_quiet: bool) -> None:
        """Learns what has waited long enough; to be asked whenever a basket is full, before the next is begun.

        Args:
            frame: Frames so far.
            is_quiet: Nothing is suspicious.
        """
        newest = frame // FRAMES_OF_A_BASKET
        wait = min(max(frame // 4, FRAMES_OF_A_BASKET), (_NUM_BASKETS - 1) * FRAMES_OF_A_BASKET)
        for age in range(_NUM_BASKETS):
            # The oldest makes room: a suspicion that lasts so long without a verdict was none.
            if age == 0 or (is_quiet and age > wait // FRAMES_OF_A_BASKET):
                self._learn(self._waiting[:, (newest - age) % _NUM_BASKETS])

    def drop(self, frame: int, count: int) -> None:
        """Windows that ended in the newest so many frames were not healthy after all."""
        newest, oldest = frame // FRAMES_OF_A_BASKET, (frame - count + 1) // FRAMES_OF_A_BASKET
        for basket in range(max(oldest, newest - _NUM_BASKETS + 1), newest + 1) if count else ():
            self._waiting[:, basket % _NUM_BASKETS] = 0.0

    def renew(self, alike: Floats, num_frames: int) -> None:
        """Finds the widths by all that was learned.

        Args:
            alike: Lag-one correlation of single frames by clock: what the shortest windows are taken to be before they
                have been seen.
            num_frames: Frames of each device that it rests on.
        """
        logs, spreads, tails = np.empty(self._counts.shape), np.empty(self._counts.shape), np.empty(self._counts.shape)
        before = _log_width(alike, LENGTHS[0])
        growth = np.clip(_log_width(alike, LENGTHS[1]) - before, _GROWTH, _LARGEST_GROWTH)
        slope = (_log_width(alike + _STEP, LENGTHS[0]) - before) / _STEP
        doubt = (1 - alike**2) / max(num_frames * self._share * self._means.shape[-1], 1)
        spread = _PRIOR_SPREAD + slope**2 * np.minimum(doubt, _LARGEST_SPREAD_OF_LIKENESS)
        before, tail = np.maximum(before, np.log(_PRIOR_WIDTH)), np.full(len(logs), _PRIOR_TAIL)
        for place in range(len(LENGTHS)):
            if place:
                before, spread = before + growth, spread + _SPREAD_OF_GROWTH**2
            # Twice as long is this much wider: neighbours are alike by so much, and their squares by its square.
            alike = np.clip(np.exp(2 * (growth - _GROWTH)) - 1, 0.0, 0.95) ** 2
            count = self._counts[:, place] * (1 - alike) / (1 + alike)
            known = (count > 0) & (self._squares[:, place] > 0)
            mean = self._squares[:, place] / np.where(known, self._counts[:, place], 1.0)
            seen = 0.5 * np.log(np.where(known, mean, 1.0))
            weight = np.where(known, 2 * count, 0.0)
            logs[:, place] = (before / spread + seen * weight) / (1 / spread + weight)
            spread = 1 / (1 / spread + weight)
            # So many normal ones about 0 have 3 n^2 / (n + 2) fourth powers of their own root mean square.
            every = self._counts[:, place]
            excess = np.where(known, self._fourths[:, place] / np.where(known, mean, 1.0) ** 2, 0.0)
            excess -= np.where(known, 3 * every**2 / (every + 2), 0.0)
            weighed = (_PRIOR_WINDOWS_OF_TAIL * tail + excess) / (_PRIOR_WINDOWS_OF_TAIL + every)
            # Half of the shorter ones' is that of independent neighbours: less is chance.
            tail = np.clip(weighed, tail if place else _LEAST_TAIL, _LARGEST_TAIL)
            spreads[:, place], tails[:, place], tail = spread, tail, tail / 2
            if place:
                growth = np.clip(logs[:, place] - logs[:, place - 1], _GROWTH, _LARGEST_GROWTH)
            before = logs[:, place]
        self.widths, self.spreads, self.tails = np.exp(logs), spreads, tails

    def _learn(self, basket: Floats) -> None:
        counts, squares, fourths, farthest = basket
        self._counts += counts
        self._squares += squares
        self._fourths += fourths
        self.farthest = np.maximum(self.farthest * (1 - _FADES) ** counts, farthest)
        beyond = np.maximum(self._counts / _LARGEST_MEMORY, 1.0)
        self._counts /= beyond
        self._squares /= beyond
        self._fourths /= beyond
        basket[:] = 0.0


def _log_width(alike: Floats, count: int) -> Floats:
    """Of windows of a first-order autoregression, by its lag-one correlation."""
    rest = 2 * alike * (1 - alike**count) / (count * (1 - alike) ** 2)
    return np.asarray(np.log((1 + alike) / (1 - alike) - rest) / 2)
