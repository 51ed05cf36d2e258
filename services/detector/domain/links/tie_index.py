"""Which rows of a bank are links, and which are groups of more than two: asked for while something is suspected."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.links.ties import Tie

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
        links = [row for row, tie in enumerate(ties) if len(tie.ranks) == 2]
        self.links: Ints = np.array(links, dtype=np.int64)
        self.ends: Ints = np.array([ties[row].ranks for row in links], dtype=np.int64).reshape(len(links), 2)
        groups = [row for row, tie in enumerate(ties) if len(tie.ranks) > 2]
        self.groups: Ints = np.array(groups, dtype=np.int64)
        self.members = [ties[row].ranks for row in groups]
