"""The newest 8 to 1,024 frames of every row, as sums of blocks: nothing drifts, and little is kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.scan.residual.tables import arranged, no_ints

LENGTHS = tuple(8 << place for place in range(8))
"""Frames of a window, shortest first."""

BLOCKS = 8
"""A window is so many blocks; it is looked at whenever one of them is complete."""


@dataclass(slots=True, eq=False)
class Windows:
    """Sums over the newest frames of a table of rows.

    Attributes:
        ages: Frames since each row began.
    """

    ages: Ints = field(default_factory=no_ints)
    # The blocks of each length, oldest first.
    _blocks: Floats = field(default_factory=lambda: np.zeros((len(LENGTHS), BLOCKS, 0, 0)))
    _num_frames: int = 0

    @classmethod
    def of_shape(cls, num_clocks: int, num_devices: int) -> "Windows":
        """Empty ones, of a table of this shape."""
        shape = num_clocks, num_devices
        return cls(np.zeros(shape, dtype=np.int64), np.zeros((len(LENGTHS), BLOCKS, *shape)))

    def arrange(self, columns: Ints) -> None:
        """Takes these columns of what is kept; -1 is a new one."""
        self.ages = arranged(self.ages, columns, 0)
        self._blocks = arranged(self._blocks, columns, 0.0)

    def push(self, values: Floats) -> Iterator[tuple[int, Floats]]:
        """Takes one frame.

        Yields:
            Place in ``LENGTHS`` and sums of the windows of that length, of the lengths that end a block here.
        """
        self._num_frames += 1
        self.ages += 1
        block = values
        for place, blocks in enumerate(self._blocks):
            if place:
                if self._num_frames % (1 << place):
                    return
                block = self._blocks[place - 1, -2] + self._blocks[place - 1, -1]
            blocks[:-1] = blocks[1:]
            blocks[-1] = block
            yield place, blocks.sum(axis=0)

    def are_whole(self, place: int) -> Bools:
        """Which rows are as old as windows of a length."""
        return np.asarray(self.ages >= LENGTHS[place])

    def begin_anew(self, rows: Bools) -> None:
        """Forgets what some rows did."""
        self.ages[rows] = 0
        self._blocks[:, :, rows] = 0.0
