"""The newest plain iterations of an epoch with their micro-batches: a planner replays them under other layouts."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.expectation.profile.profile import ProfiledIteration, ProfiledIterations
from evenkeel.services.detector.domain.memory.state import DERIVED

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int16]

_NOWHERE: Ints = np.zeros(0, dtype=np.int64)
_NOTHING: Shorts = np.zeros(0, dtype=np.int16)
_MOST_ITERATIONS = 16
_MOST_MICRO_BATCHES = 2048
"""In all iterations together: more would make records large and plans late, and tell no more."""


@dataclass(slots=True, eq=False)
class RecentIterations:
    """What the iterations were made of; nothing where that is not known of all micro-batches."""

    # One row each, oldest first: iteration, seconds of its slowest rank, then tokens and sum of squares of each
    # micro-batch; NaN behind them. One table, as an object each would be most of what a small job's detector holds.
    _kept: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    # A digest of the indexes that were named last, and where each micro-batch was named first.
    _named: bytes = field(default=b"", metadata=DERIVED)
    _places: Ints = field(default_factory=lambda: _NOWHERE, metadata=DERIVED)
    # What was named last where that is whole: the next iteration mostly names the same.
    _indexes: Shorts = field(default_factory=lambda: _NOTHING, metadata=DERIVED)

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
        if _kept_again(self._kept, self._indexes, self._places, micro_batches, iteration, wall_seconds):
            return
        places = self._each_once(micro_batches[:, 0])
        if len(places):
            self._keep(np.concatenate([(iteration, wall_seconds), micro_batches[places, 1:].ravel()]))

    def iterations(self) -> Sequence[ProfiledIteration]:
        """Oldest first; those in which a micro-batch is missing are left out."""
        if not len(self._kept):
            return ()
        whole, most = self._kept, self._kept.shape[1] // 2 - 1
        if math.isnan(whole[:, -1].sum()):
            counts = _num_micro_batches(whole)
            most = int(counts.max(initial=0))
            # A last micro-batch that is missing does not show in the indexes of the others.
            whole = whole[counts == most]
        newest = whole[-(_MOST_MICRO_BATCHES // most) :] if 0 < most <= _MOST_MICRO_BATCHES else whole[:0]
        return ProfiledIterations(newest[:, : 2 + 2 * most].copy())

    def _keep(self, one: Floats) -> None:
        kept = self._kept
        width, count = max(kept.shape[1], len(one)), min(len(kept) + 1, _MOST_ITERATIONS)
        if (count, width) != kept.shape:
            kept = np.full((count, width), np.nan)
            before = self._kept[len(self._kept) + 1 - count :]
            kept[: count - 1, : before.shape[1]] = before
        else:
            kept[:-1] = kept[1:]
            kept[-1, len(one) :] = np.nan
        kept[-1, : len(one)] = one
        self._kept = kept

    def _each_once(self, indexes: Floats) -> Ints:
        """Where each micro-batch is named first, by index; nowhere when one is missing. Mostly that of before."""
        named = hashlib.blake2b(indexes.tobytes(), digest_size=16).digest()
        if named != self._named:
            each, places = np.unique(indexes, return_index=True)
            is_whole = len(each) <= _MOST_MICRO_BATCHES and np.array_equal(each, np.arange(len(each)))
            self._named, self._places = named, places if is_whole else _NOWHERE
            self._indexes = indexes.astype(np.int16) if is_whole else _NOTHING
        return self._places


@compiled
def _kept_again(
    kept: Floats, named: Shorts, places: Ints, micro_batches: Floats, iteration: int, wall_seconds: float
) -> bool:
    """Keeps an iteration in place of the oldest one, where it names the same micro-batches as the one before.

    Args:
        kept: ``RecentIterations._kept``; written if it is full and as wide as the iteration.
        named: Indexes that were named last; nothing where one was missing.
        places: Where each was named first.
        micro_batches: One row each time that a rank names one: index, tokens, sum of squares.
        iteration: Iteration.
        wall_seconds: Of its slowest rank.

    Returns:
        Whether it is kept.
    """
    if len(kept) != _MOST_ITERATIONS or kept.shape[1] != 2 + 2 * len(places) or len(named) != len(micro_batches):
        return False
    for row in range(len(named)):
        if named[row] != micro_batches[row, 0]:
            return False
    last = len(kept) - 1
    for row in range(last):
        kept[row] = kept[row + 1]
    kept[last, 0], kept[last, 1] = iteration, wall_seconds
    for index in range(len(places)):
        kept[last, 2 + 2 * index] = micro_batches[places[index], 1]
        kept[last, 3 + 2 * index] = micro_batches[places[index], 2]
    return len(places) > 0


def _num_micro_batches(kept: Floats) -> Ints:
    """How many micro-batches each row tells of."""
    found: Ints = np.maximum(np.count_nonzero(~np.isnan(kept), axis=1) // 2 - 1, 0)
    return found
