"""The newest plain iterations of an epoch with their micro-batches: a planner replays them under other layouts."""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats, Ints
from evenkeel.services.detector.domain.expectation.profile.profile import ProfiledIteration

_MOST_ITERATIONS = 16
_MOST_MICRO_BATCHES = 2048
"""In all iterations together: more would make records large and plans late, and tell no more."""


@dataclass(slots=True, eq=False)
class RecentIterations:
    """What the iterations were made of; nothing where that is not known of all micro-batches."""

    # One row each, oldest first: iteration, seconds of its slowest rank, then tokens and sum of squares of each
    # micro-batch; NaN behind them. One table, as an object each would be most of what a small job's detector holds.
    _kept: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def clear(self) -> None:
        """Another layout is in force."""
        self._kept = np.zeros((0, 0))

    def forget_before(self, iteration: int) -> None:
        """What ran before an iteration was of other devices, or of the same at another speed."""
        if len(self._kept):
            self._kept = self._kept[np.logical_or.accumulate(self._kept[:, 0] >= iteration)]

    def append(self, iteration: int, wall_seconds: float, micro_batches: Floats | None) -> None:
        """Takes one iteration.

        Args:
            iteration: Iteration.
            wall_seconds: Of its slowest rank.
            micro_batches: One row each time that a rank names one: index, tokens, sum of squares; None = not known.
        """
        if micro_batches is None or not len(micro_batches) or wall_seconds <= 0.0:
            return
        places = _each_once(micro_batches[:, 0])
        if not len(places):
            return
        one = np.concatenate([(iteration, wall_seconds), micro_batches[places, 1:].ravel()])
        before = self._kept[1 - _MOST_ITERATIONS :]
        kept = np.full((len(before) + 1, max(before.shape[1], len(one))), np.nan)
        kept[:-1, : before.shape[1]] = before
        kept[-1, : len(one)] = one
        self._kept = kept

    def iterations(self) -> tuple[ProfiledIteration, ...]:
        """Oldest first; those in which a micro-batch is missing are left out."""
        if not len(self._kept):
            return ()
        # A last micro-batch that is missing does not show in the indexes of the others.
        counts = np.count_nonzero(np.isfinite(self._kept), axis=1) // 2 - 1
        most = int(counts.max())
        whole = self._kept[counts == most, : 2 + 2 * most]
        newest = whole[-(_MOST_MICRO_BATCHES // most) :]
        numbers = zip(newest[:, 1].tolist(), newest.astype(np.int64).tolist(), strict=True)
        return tuple(
            [ProfiledIteration(row[0], seconds, tuple(row[2::2]), tuple(row[3::2])) for seconds, row in numbers]
        )


def _each_once(indexes: Floats) -> Ints:
    """Where each micro-batch is named first, by index; nowhere when one is missing, or there are too many."""
    named = indexes.astype(np.int64)
    found = np.full(_MOST_MICRO_BATCHES, -1)
    if named.min() < 0 or named.max() >= len(found):
        return found[:0]
    found[named[::-1]] = np.arange(len(named))[::-1]
    found = found[: named.max() + 1]
    return found if found.min() >= 0 else found[:0]
