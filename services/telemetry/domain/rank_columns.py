"""What is known of each live rank of a job, a column each, so that thousands are looked at in one step. Pure."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats, Ints

_LEAST = 64
_NEVER = -1


class RankColumns:
    """One row a rank, which is free again when the rank is removed.

    Attributes:
        rows: Row of each rank; -1 where there is none. Ranks beyond its end have none either.
        incarnations: Which process of the rank; -1 in a row that is free.
        heard_at_seconds: When anything was heard of it, Unix seconds.
        moved_at_seconds: When it last moved, likewise.
        reported: Whether it has reported its progress; False in a row that is free.
        operation_counts: Its newest count of operations; -1 before the first one.
        payloads: Its newest report.
    """

    def __init__(self) -> None:
        """Starts with none."""
        self.rows: Ints = np.full(_LEAST, -1, dtype=np.int64)
        self.incarnations: Ints = np.full(_LEAST, -1, dtype=np.int64)
        self.heard_at_seconds: Floats = np.zeros(_LEAST)
        self.moved_at_seconds: Floats = np.zeros(_LEAST)
        self.reported: Bools = np.zeros(_LEAST, dtype=np.bool_)
        self.operation_counts: list[int] = [_NEVER] * _LEAST
        self.payloads: list[Any] = [None] * _LEAST
        self._taken: dict[int, int] = {}
        self._free = list(range(_LEAST - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._taken)

    def items(self) -> Iterator[tuple[int, int]]:
        """Ranks and their rows."""
        return iter(self._taken.items())

    def row_of(self, rank: int) -> int:
        """The rank's row; -1 if it has none."""
        return self._taken.get(rank, -1)

    def put(self, rank: int, incarnation: int, now_seconds: float) -> None:
        """A process that was heard of for the first time takes its rank's row."""
        row = self._taken.get(rank, -1)
        if row < 0:
            row = self._taken[rank] = self._free_row()
            if rank >= len(self.rows):
                self.rows = _longer(self.rows, max(rank + 1, 2 * len(self.rows)), -1)
            if rank >= 0:
                self.rows[rank] = row
        self.incarnations[row] = incarnation
        self.heard_at_seconds[row] = self.moved_at_seconds[row] = now_seconds
        self.reported[row] = False
        self.operation_counts[row], self.payloads[row] = _NEVER, None

    def remove(self, rank: int) -> None:
        """The rank, which must have a row, is gone."""
        row = self._taken.pop(rank)
        if rank >= 0:
            self.rows[rank] = -1
        self.incarnations[row], self.reported[row], self.payloads[row] = -1, False, None
        self._free.append(row)

    def _free_row(self) -> int:
        if not self._free:
            size = len(self.incarnations)
            self.incarnations = _longer(self.incarnations, 2 * size, -1)
            self.heard_at_seconds = _longer(self.heard_at_seconds, 2 * size, 0.0)
            self.moved_at_seconds = _longer(self.moved_at_seconds, 2 * size, 0.0)
            self.reported = _longer(self.reported, 2 * size, False)
            self.operation_counts.extend([_NEVER] * size)
            self.payloads.extend([None] * size)
            self._free.extend(range(2 * size - 1, size - 1, -1))
        return self._free.pop()


def _longer(column: npt.NDArray[Any], size: int, value: float) -> npt.NDArray[Any]:
    grown = np.full(size, value, dtype=column.dtype)
    grown[: len(column)] = column
    return grown
