"""The newest plain iterations of an epoch with their micro-batches: a planner replays them under other layouts."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.verdict import ProfiledIteration

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_ITERATIONS = 16
_MOST_MICRO_BATCHES = 2048
"""In all iterations together: more would make records large and plans late, and tell no more."""


class RecentIterations:
    """What the iterations were made of; nothing where that is not known of all micro-batches."""

    __slots__ = ("_kept", "_named", "_places")

    def __init__(self) -> None:
        # One row each, oldest first: iteration, seconds of its slowest rank, then tokens and sum of squares of each
        # micro-batch; NaN behind them. One table, as an object each would be most of what a small job's detector holds.
        self._kept: Floats = np.zeros((0, 0))
        # A digest of the indexes that were named last, and where each micro-batch was named first.
        self._named = b""
        self._places: Ints | None = None

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
        places = self._each_once(micro_batches[:, 0])
        if places is not None:
            self._keep(np.concatenate([(iteration, wall_seconds), micro_batches[places, 1:].ravel()]))

    def iterations(self) -> tuple[ProfiledIteration, ...]:
        """Oldest first; those in which a micro-batch is missing are left out."""
        if not len(self._kept):
            return ()
        counts = _num_micro_batches(self._kept)
        most = int(counts.max(initial=0))
        # A last micro-batch that is missing does not show in the indexes of the others.
        whole = self._kept[counts == most]
        newest = whole[-(_MOST_MICRO_BATCHES // most) :] if 0 < most <= _MOST_MICRO_BATCHES else whole[:0]
        return tuple([_profiled(one[: 2 + 2 * most]) for one in newest])

    def _keep(self, one: Floats) -> None:
        kept = self._kept
        width, count = max(kept.shape[1], len(one)), min(len(kept) + 1, _MOST_ITERATIONS)
        if (count, width) != kept.shape:
            kept = np.full((count, width), np.nan)
            kept[: len(self._kept), : self._kept.shape[1]] = self._kept
        else:
            kept[:-1] = kept[1:]
            kept[-1, len(one) :] = np.nan
        kept[-1, : len(one)] = one
        self._kept = kept

    def _each_once(self, indexes: Floats) -> Ints | None:
        """Where each micro-batch is named first, by index; None when one is missing. Mostly that of the one before."""
        named = hashlib.blake2b(indexes.tobytes(), digest_size=16).digest()
        if named != self._named:
            each, places = np.unique(indexes, return_index=True)
            is_whole = len(each) <= _MOST_MICRO_BATCHES and np.array_equal(each, np.arange(len(each)))
            self._named, self._places = named, places if is_whole else None
        return self._places

    def to_state(self) -> list[Any]:
        """Everything remembered, as plain values."""
        counts = _num_micro_batches(self._kept).tolist()
        every = [_profiled(one[: 2 + 2 * count]) for one, count in zip(self._kept, counts, strict=True)]
        return [[one.iteration, one.wall_seconds, one.tokens, one.sums_of_squares] for one in every]

    def restore(self, state: list[Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self.clear()
        for iteration, wall_seconds, tokens, squares in state:
            self._keep(np.concatenate([(iteration, wall_seconds), np.array([tokens, squares]).T.ravel()]))


def _num_micro_batches(kept: Floats) -> Ints:
    """How many micro-batches each row tells of."""
    found: Ints = np.maximum(np.count_nonzero(~np.isnan(kept), axis=1) // 2 - 1, 0)
    return found


def _profiled(one: Floats) -> ProfiledIteration:
    return ProfiledIteration(
        iteration=int(one[0]),
        wall_seconds=float(one[1]),
        tokens=tuple(one[2::2].astype(np.int64).tolist()),
        sums_of_squares=tuple(one[3::2].astype(np.int64).tolist()),
    )
