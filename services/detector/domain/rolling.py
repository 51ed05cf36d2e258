"""The newest so many rows of numbers, always side by side in memory, without moving them all for each new one."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

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
        self.stop, self.count = move_on(self.buffer, self._most, self.stop, self.count)
        return self.rows

    @property
    def place(self) -> tuple[int, int, int]:
        """What :func:`move_on` works on beside the buffer: how many are kept, where the next goes, how many there are.

        :attr:`stop` and :attr:`count` are to be set to what it returns.
        """
        return self._most, self.stop, self.count

    def clear(self) -> None:
        """Forgets all."""
        self.stop = self.count = 0

    @property
    def rows(self) -> Floats:
        """A view of them, oldest first; it holds until the next one is taken."""
        return self.buffer[self.stop - self.count : self.stop]


@compiled
def move_on(buffer: Floats, most: int, stop: int, count: int) -> tuple[int, int]:
    """Counts the row that was written where the next one goes; moves all back to the beginning at the buffer's end.

    Args:
        buffer: One row each; written.
        most: How many are kept.
        stop: Where the next one went.
        count: How many there were.

    Returns:
        Where the next one goes, and how many there are.
    """
    stop += 1
    if stop == len(buffer):
        for place in range(most):
            buffer[place] = buffer[stop - most + place]
        stop = most
    return stop, min(count + 1, most)
