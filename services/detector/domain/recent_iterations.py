"""The newest plain iterations of an epoch with their micro-batches: a planner replays them under other layouts."""

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.verdict import ProfiledIteration

Floats = npt.NDArray[np.float64]

_MOST_ITERATIONS = 16
_MOST_MICRO_BATCHES = 2048
"""In all iterations together: more would make records large and plans late, and tell no more."""


class RecentIterations:
    """What the iterations were made of; nothing where that is not known of all micro-batches."""

    def __init__(self) -> None:
        self._kept: deque[ProfiledIteration] = deque(maxlen=_MOST_ITERATIONS)
        self._fresh: deque[tuple[int, float, Floats]] = deque(maxlen=_MOST_ITERATIONS)

    def clear(self) -> None:
        """Another layout is in force."""
        self._kept.clear()
        self._fresh.clear()

    def forget_before(self, iteration: int) -> None:
        """What ran before an iteration was of other devices, or of the same at another speed."""
        self._sort_out()
        while self._kept and self._kept[0].iteration < iteration:
            self._kept.popleft()

    def append(self, iteration: int, wall_seconds: float, micro_batches: Floats | None) -> None:
        """Takes one iteration.

        Args:
            iteration: Iteration.
            wall_seconds: Of its slowest rank.
            micro_batches: One row each time that a rank names one: index, tokens, sum of squares; None = not known.
        """
        if micro_batches is not None and len(micro_batches) and wall_seconds > 0.0:
            self._fresh.append((iteration, wall_seconds, micro_batches))

    def iterations(self) -> tuple[ProfiledIteration, ...]:
        """Oldest first; those in which a micro-batch is missing are left out."""
        self._sort_out()
        most = max([len(one.tokens) for one in self._kept], default=0)
        # A last micro-batch that is missing does not show in the indexes of the others.
        whole = [one for one in self._kept if len(one.tokens) == most]
        return tuple(whole[-(_MOST_MICRO_BATCHES // most) :]) if 0 < most <= _MOST_MICRO_BATCHES else ()

    def _sort_out(self) -> None:
        """Each micro-batch once, by its index: done when somebody asks, which is not in every iteration."""
        for iteration, wall_seconds, rows in self._fresh:
            indexes, places = np.unique(rows[:, 0], return_index=True)
            if len(indexes) > _MOST_MICRO_BATCHES or not np.array_equal(indexes, np.arange(len(indexes))):
                continue
            sizes = rows[places, 1:].astype(np.int64).T.tolist()
            self._kept.append(
                ProfiledIteration(
                    iteration=iteration,
                    wall_seconds=wall_seconds,
                    tokens=tuple(sizes[0]),
                    sums_of_squares=tuple(sizes[1]),
                )
            )
        self._fresh.clear()

    def to_state(self) -> list[Any]:
        """Everything remembered, as plain values."""
        self._sort_out()
        return [[one.iteration, one.wall_seconds, one.tokens, one.sums_of_squares] for one in self._kept]

    def restore(self, state: list[Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self.clear()
        self._kept.extend(
            ProfiledIteration(
                iteration=iteration, wall_seconds=wall, tokens=tuple(tokens), sums_of_squares=tuple(squares)
            )
            for iteration, wall, tokens, squares in state
        )
