"""Samples of one job that came together, of a few iterations, looked at as columns. Pure."""

from functools import cached_property
from itertools import pairwise, starmap

import numpy as np

from evenkeel.numeric.arrays import Ints
from evenkeel.services.telemetry.domain.sample_block import SampleBlock


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
    def _order(self) -> Ints:
        """Its rows, ascending by iteration."""
        iterations = self.block.iterations[self.first : self.stop]
        return np.argsort(iterations, kind="stable") + self.first

    @cached_property
    def _spans(self) -> dict[int, slice]:
        """Where in the order each iteration is."""
        iterations = self.block.iterations[self._order]
        begins = [0, *(np.flatnonzero(iterations[1:] != iterations[:-1]) + 1).tolist(), len(iterations)]
        return dict(zip(iterations[begins[:-1]].tolist(), starmap(slice, pairwise(begins)), strict=True))

    @cached_property
    def rows(self) -> dict[int, Ints]:
        """Rows by iteration, ascending."""
        order = self._order
        return {iteration: order[span] for iteration, span in self._spans.items()}

    @cached_property
    def iterations(self) -> dict[int, list[int]]:
        """Ranks by iteration, ascending by iteration, in the order of the rows."""
        ranks = self.block.ranks[self._order].tolist()
        return {iteration: ranks[span] for iteration, span in self._spans.items()}

    @cached_property
    def longest_seconds(self) -> dict[int, float]:
        """The longest that each iteration took any of its ranks."""
        begins = [span.start for span in self._spans.values()]
        longest = np.maximum.reduceat(self.block.numbers[self._order, 1], begins)
        return dict(zip(self._spans, longest.tolist(), strict=True))

    @cached_property
    def newest(self) -> dict[int, int]:
        """Newest iteration of each rank."""
        iterations = self.block.iterations[self._order].tolist()
        return dict(zip(self.block.ranks[self._order].tolist(), iterations, strict=True))

    def in_order(self) -> bool:
        """Whether each rank brings its iterations in ascending order, none of them twice."""
        ranks = self.block.ranks[self.first : self.stop]
        order = np.argsort(ranks, kind="stable")
        same_rank = np.diff(ranks[order]) == 0
        return not bool((np.diff(self.block.iterations[self.first : self.stop][order])[same_rank] <= 0).any())
