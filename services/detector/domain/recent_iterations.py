"""The newest plain iterations of an epoch with their micro-batches: a planner replays them under other layouts."""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.verdict import ProfiledIteration

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_ITERATIONS = 16
_NUMBER_BYTES = 8
_MOST_MICRO_BATCHES = 2048
"""In all iterations together: more would make records large and plans late, and tell no more."""


class RecentIterations:
    """What the iterations were made of; nothing where that is not known of all micro-batches.

    Kept as the bytes of one small array an iteration: as plain numbers they would be most of what a small job's
    detector holds, and an array's own upkeep a third of it.
    """

    def __init__(self) -> None:
        # Of each: iteration, seconds of its slowest rank, then tokens and sum of squares of each micro-batch.
        self._kept: list[bytes] = []
        self._named: Floats = np.zeros(0)
        self._places: Ints | None = None

    def clear(self) -> None:
        """Another layout is in force."""
        self._kept.clear()

    def forget_before(self, iteration: int) -> None:
        """What ran before an iteration was of other devices, or of the same at another speed."""
        while self._kept and np.frombuffer(self._kept[0], count=1)[0] < iteration:
            del self._kept[0]

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
        most = max([_num_micro_batches(one) for one in self._kept], default=0)
        # A last micro-batch that is missing does not show in the indexes of the others.
        whole = [one for one in self._kept if _num_micro_batches(one) == most]
        newest = whole[-(_MOST_MICRO_BATCHES // most) :] if 0 < most <= _MOST_MICRO_BATCHES else []
        return tuple([_profiled(one) for one in newest])

    def _keep(self, one: Floats) -> None:
        del self._kept[: max(len(self._kept) + 1 - _MOST_ITERATIONS, 0)]
        self._kept.append(one.tobytes())

    def _each_once(self, indexes: Floats) -> Ints | None:
        """Where each micro-batch is named first, by index; None when one is missing. Mostly that of the one before."""
        if not np.array_equal(indexes, self._named):
            each, places = np.unique(indexes, return_index=True)
            is_whole = len(each) <= _MOST_MICRO_BATCHES and np.array_equal(each, np.arange(len(each)))
            self._named, self._places = indexes.copy(), places if is_whole else None
        return self._places

    def to_state(self) -> list[Any]:
        """Everything remembered, as plain values."""
        every = [_profiled(one) for one in self._kept]
        return [[one.iteration, one.wall_seconds, one.tokens, one.sums_of_squares] for one in every]

    def restore(self, state: list[Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self.clear()
        for iteration, wall_seconds, tokens, squares in state:
            self._keep(np.concatenate([(iteration, wall_seconds), np.array([tokens, squares]).T.ravel()]))


def _num_micro_batches(kept: bytes) -> int:
    return len(kept) // (2 * _NUMBER_BYTES) - 1


def _profiled(kept: bytes) -> ProfiledIteration:
    one = np.frombuffer(kept)
    return ProfiledIteration(
        iteration=int(one[0]),
        wall_seconds=float(one[1]),
        tokens=tuple(one[2::2].astype(np.int64).tolist()),
        sums_of_squares=tuple(one[3::2].astype(np.int64).tolist()),
    )
