"""Samples of one job that came together, of a few iterations, looked at as columns. Pure."""

from functools import cached_property

import numpy as np

from numeric.arrays import Ints
from services.telemetry.domain.sample_block import SampleBlock


class Crowd:
    """Consecutive rows of a block.

    Args:
        block: The block.
        first: First row.
        stop: Behind the last row.
    """

    def __init__(self, block: SampleBlock, first: int, stop: int) -> None:
        self.block = block
        self.first = first
        self.stop = stop

    @classmethod
    def of(cls, block: SampleBlock, first: int, stop: int, *, epoch: int, lowest: int, most: int) -> "Crowd":
        """The rows from ``first`` on, ``stop`` at most, that are of one epoch and of few iterations.

        Args:
            block: The block.
            first: First row.
            stop: Behind the last row.
            epoch: The epoch.
            lowest: Lowest iteration.
            most: How many iterations, this one included.
        """
        iterations = block.iterations[first:stop]
        wanted = (iterations >= lowest) & (iterations < lowest + most) & (block.epochs[first:stop] == epoch)
        return cls(block, first, stop if wanted.all() else first + int(wanted.argmin()))

    def __len__(self) -> int:
        return self.stop - self.first

    def cut(self, size: int) -> "Crowd":
        """The first rows."""
        return self if size == len(self) else Crowd(self.block, self.first, self.first + size)

    @cached_property
    def ranks(self) -> list[int]:
        """Rank of each row."""
        return self.block.ranks[self.first : self.stop].tolist()  # type: ignore[no-any-return] # numpy does not say

    @cached_property
    def incarnations(self) -> list[int]:
        """Which process of the rank, of each row."""
        return self.block.incarnations[self.first : self.stop].tolist()  # type: ignore[no-any-return] # the same

    @cached_property
    def rows(self) -> dict[int, Ints]:
        """Rows by iteration, ascending."""
        iterations = self.block.iterations[self.first : self.stop]
        return {each: np.flatnonzero(iterations == each) + self.first for each in np.unique(iterations).tolist()}

    @cached_property
    def iterations(self) -> dict[int, list[int]]:
        """Ranks by iteration, ascending by iteration, in the order of the rows."""
        if len(self.rows) == 1:
            return dict.fromkeys(self.rows, self.ranks)
        return {iteration: self.block.ranks[rows].tolist() for iteration, rows in self.rows.items()}

    def in_order(self) -> bool:
        """Whether each rank brings its iterations in ascending order, none of them twice."""
        ranks = self.block.ranks[self.first : self.stop]
        order = np.argsort(ranks, kind="stable")
        same_rank = np.diff(ranks[order]) == 0
        return not bool((np.diff(self.block.iterations[self.first : self.stop][order])[same_rank] <= 0).any())
