"""The newest frames of a table, oldest first when they are looked at."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

KEPT = 64
"""Frames that are kept."""


class Recent:
    """A ring of the newest ``KEPT`` tables of one shape.

    Args:
        shape: Of a table.

    Attributes:
        tables: The ring itself, not in order; NaN where nothing was kept yet.
        num_pushed: Tables so far.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.tables: Floats = np.full((KEPT, *shape), np.nan)
        self.num_pushed = 0

    def push(self, table: Floats) -> None:
        """Keeps one more; the oldest goes."""
        self.tables[self.num_pushed % KEPT] = table
        self.num_pushed += 1

    def newest(self, count: int = KEPT) -> Floats:
        """The newest so many that were kept, oldest first."""
        count = min(count, self.num_pushed, KEPT)
        return self.tables[np.arange(self.num_pushed - count, self.num_pushed) % KEPT]
