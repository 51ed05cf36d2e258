"""The newest so many rows of numbers, always side by side in memory, without moving them all for each new one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.memory.state import GIVEN

Floats = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class RollingRows:
    """The newest rows of equal width.

    Attributes:
        most: How many are kept.
        buffer: Where they are; behind them there is room for one more.
        stop: Where the next one goes.
        count: How many there are.
    """

    most: int = field(metadata=GIVEN)
    buffer: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    stop: int = 0
    count: int = 0

    def __len__(self) -> int:
        return self.count

    def append(self, row: Floats | Sequence[float]) -> None:
        """Takes the next row; one of another width than those before starts afresh."""
        self.prepare(len(row))
        self.buffer[self.stop] = row
        self.take()

    def prepare(self, width: int) -> Floats:
        """The buffer, with room for a row of this width where the next one goes, which is not counted before `take`."""
        if width != self.buffer.shape[1]:
            self.buffer = np.zeros((self.most + self.most // 16 + 1, width))
            self.stop = self.count = 0
        return self.buffer

    @property
    def next_place(self) -> tuple[int, int]:
        """Rows of the buffer: the first that counts with the next one, and that one."""
        return self.stop - min(self.count, self.most - 1), self.stop

    def take(self) -> Floats:
        """Counts the row that was written where the next one goes, and returns all rows."""
        self.stop, self.count = self.stop + 1, min(self.count + 1, self.most)
        if self.stop == len(self.buffer):
            self.buffer[: self.most] = self.buffer[self.stop - self.most :].copy()
            self.stop = self.most
        return self.rows

    def clear(self) -> None:
        """Forgets all."""
        self.stop = self.count = 0

    @property
    def rows(self) -> Floats:
        """A view of them, oldest first; it holds until the next one is taken."""
        return self.buffer[self.stop - self.count : self.stop]
