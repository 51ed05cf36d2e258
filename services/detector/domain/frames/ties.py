"""What transfers go over: pairs of neighbours, and groups."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Ints

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """What can be slow: a pair of neighbours, or a group.

    Attributes:
        group: Number of a group; None of a pair.
        ranks: Who takes part, ascending.
        crosses: They run on more than one node.
    """

    group: int | None
    ranks: tuple[int, ...]
    crosses: bool

    @property
    def key(self) -> tuple[int, int, int, bool]:
        """The same in every frame; the same ranks, but one of them moved to another node, are another tie.

        Whether it is a group; lower and higher rank of a pair, number and size of a group; whether it crosses nodes.
        """
        if self.group is None:
            return 0, self.ranks[0], self.ranks[-1], self.crosses
        return 1, self.group, len(self.ranks), self.crosses


@dataclass(slots=True, eq=False)
class Ties:
    """Some ties, as numbers: an object each would be a large part of what a small job's detector holds."""

    # One column each: which has a number of a group, that number, where its ranks end, whether it crosses nodes.
    _table: Ints
    _members: Numbers

    @classmethod
    def of(cls, ties: Iterable[Tie]) -> Self:
        """These ties."""
        ties = tuple(ties)
        ends = accumulate(len(tie.ranks) for tie in ties)
        rows = [(tie.group is not None, tie.group or 0, end, tie.crosses) for tie, end in zip(ties, ends, strict=True)]
        return cls(
            np.array(rows, dtype=np.int64).reshape(len(rows), 4).T.copy(),
            np.array([rank for tie in ties for rank in tie.ranks], dtype=np.int32),
        )

    def __len__(self) -> int:
        count: int = self._table.shape[1]
        return count

    def __iter__(self) -> Iterator[Tie]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Tie:
        is_group, group, end, crosses = self._table[:, index].tolist()
        start = int(self._table[2, index - 1]) if index else 0
        ranks = tuple(self._members[start:end].tolist())
        return Tie(group=group if is_group else None, ranks=ranks, crosses=bool(crosses))

    @property
    def sizes(self) -> Ints:
        """How many ranks each of them has."""
        found: Ints = np.diff(self._table[2], prepend=0)
        return found

    def ends(self, pairs: Ints) -> Ints:
        """The two ranks of each of some pairs, one row each, ascending."""
        last = self._table[2, pairs] - 1
        found: Ints = np.stack([self._members[last - 1], self._members[last]], axis=1).astype(np.int64)
        return found

    @property
    def crossing_pairs(self) -> Bools:
        """Which of them are pairs on two nodes."""
        found: Bools = (self._table[0] == 0) & (self._table[3] > 0)
        return found
