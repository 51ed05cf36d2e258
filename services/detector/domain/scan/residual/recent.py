"""The newest frames of a table, oldest first when they are looked at."""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats, Ints
from evenkeel.services.detector.domain.scan.residual.tables import arranged

KEPT = 64
"""Frames that are kept."""


@dataclass(slots=True, eq=False)
class Recent:
    """A ring of the newest ``KEPT`` tables of one shape.

    Attributes:
        tables: The ring itself, not in order, one table a row; NaN where nothing was kept yet.
        num_pushed: Tables so far.
    """

    tables: Floats = field(default_factory=lambda: np.full(KEPT, np.nan))
    num_pushed: int = 0

    @classmethod
    def of_shape(cls, *shape: int) -> "Recent":
        """An empty one, for tables of a shape."""
        return cls(np.full((KEPT, *shape), np.nan))

    def arrange(self, columns: Ints) -> None:
        """Takes these columns of what is kept; -1 is a new one, of which nothing was observed."""
        self.tables = arranged(self.tables, columns, np.nan)

    def push(self, table: Floats) -> None:
        """Keeps one more; the oldest goes."""
        self.tables[self.num_pushed % KEPT] = table
        self.num_pushed += 1

    def newest(self, count: int = KEPT) -> Floats:
        """The newest so many that were kept, oldest first."""
        count = min(count, self.num_pushed, KEPT)
        return self.tables[np.arange(self.num_pushed - count, self.num_pushed) % KEPT]
