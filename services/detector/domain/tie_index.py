"""Which rows of a bank are links, and which are groups of more than two: asked for while something is suspected."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.detector.domain.transfer_plan import Tie

Ints = npt.NDArray[np.int64]


class TieIndex:
    """Rows by what they are.

    Args:
        ties: What each row is.

    Attributes:
        links: Rows of two ranks.
        ends: Their ranks, one row each, ascending.
        groups: Rows of more than two.
        members: Their ranks.
    """

    __slots__ = ("ends", "groups", "links", "members")

    def __init__(self, ties: Sequence[Tie]) -> None:
        pairs = [(row, *tie.ranks) for row, tie in enumerate(ties) if len(tie.ranks) == 2]
        table = np.array(pairs, dtype=np.int64).reshape(len(pairs), 3)
        self.links: Ints = table[:, 0]
        self.ends: Ints = table[:, 1:]
        groups = [row for row, tie in enumerate(ties) if len(tie.ranks) > 2]
        self.groups: Ints = np.array(groups, dtype=np.int64)
        self.members = [ties[row].ranks for row in groups]
