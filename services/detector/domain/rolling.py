"""The newest so many rows of numbers, always side by side in memory, without moving them all for each new one."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class RollingRows:
    """The newest rows of equal width.

    Args:
        most: How many are kept.

    Attributes:
        buffer: Where they are; behind them there is room for one more.
        stop: Where the next one goes.
        count: How many there are.
    """

    __slots__ = ("_most", "_width", "buffer", "count", "stop")

    def __init__(self, most: int, rows: Sequence[Sequence[float]] = ()) -> None:
        self._most = most
        self.buffer: Floats = np.zeros((0, 0))
        self._width = self.stop = self.count = 0
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return self.count

    def append(self, row: Floats | Sequence[float]) -> None:
        """Takes the next row; one of another width than those before starts afresh."""
        self.prepare(len(row))
        self.buffer[self.stop] = row
        self.take()

    def prepare(self, width: int) -> Floats:
        """The buffer, with room for a row of this width where the next one goes, which is not counted before `take`."""
        if width != self._width:
            self._width = width
            self.buffer = np.empty((self._most + self._most // 16 + 1, width))
            self.stop = self.count = 0
        return self.buffer

    @property
    def next_place(self) -> tuple[int, int]:
        """Rows of the buffer: the first that counts with the next one, and that one."""
        return self.stop - min(self.count, self._most - 1), self.stop

    def take(self) -> Floats:
        """Counts the row that was written where the next one goes, and returns all rows."""
        self.stop, self.count = self.stop + 1, min(self.count + 1, self._most)
        if self.stop == len(self.buffer):
            self.buffer[: self._most] = self.buffer[self.stop - self._most :].copy()
            self.stop = self._most
        return self.rows

    def clear(self) -> None:
        """Forgets all."""
        self.stop = self.count = 0

    @property
    def rows(self) -> Floats:
        """A view of them, oldest first; it holds until the next one is taken."""
        return self.buffer[self.stop - self.count : self.stop]
