"""The newest so many rows of numbers, always side by side in memory, without moving them all for each new one."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class RollingRows:
    """The newest rows of equal width.

    Args:
        most: How many are kept.
    """

    __slots__ = ("_buffer", "_count", "_most", "_stop", "_width")

    def __init__(self, most: int, rows: Sequence[Sequence[float]] = ()) -> None:
        self._most = most
        self._buffer: Floats = np.zeros((0, 0))
        self._width = self._stop = self._count = 0
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return self._count

    def append(self, row: Floats | Sequence[float]) -> None:
        """Takes the next row; one of another width than those before starts afresh."""
        self.begin(len(row))[-1] = row

    def begin(self, width: int) -> Floats:
        """Makes room for the next row, and returns all rows: the last one is to be written."""
        if width != self._width:
            self._width = width
            self._buffer = np.empty((self._most + self._most // 16 + 1, width))
            self._stop = self._count = 0
        elif self._stop == len(self._buffer):
            kept = self._most - 1
            self._buffer[:kept] = self._buffer[self._stop - kept :]
            self._stop = kept
        self._stop += 1
        if self._count < self._most:
            self._count += 1
        return self.rows

    def clear(self) -> None:
        """Forgets all."""
        self._stop = self._count = 0

    @property
    def rows(self) -> Floats:
        """A view of them, oldest first; it holds until the next one is taken."""
        return self._buffer[self._stop - self._count : self._stop]
