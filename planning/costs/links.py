"""Slow links: what the detector found of them, and what they do to transfers between stages."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from evenkeel.layouts.layout import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """Transfers that take longer than they should.

    Attributes:
        ranks: The two ends of a link; one rank: all of its links.
        factor: Seconds of a transfer over those of a healthy one, above 1.
    """

    ranks: tuple[int, ...]
    factor: float

    def __post_init__(self) -> None:
        if len(self.ranks) not in (1, 2):
            raise ValueError(
                f"a slow link of ranks {self.ranks}: name its two ends, or the one rank all of whose links"
            )
        if not (math.isfinite(self.factor) and self.factor > 1.0):
            raise ValueError(f"a slow link with factor {self.factor}: give a finite number above 1")

    def joins(self, one: Collection[int], other: Collection[int]) -> bool:
        """True when transfers between two stages of these ranks go over it."""
        if len(self.ranks) == 1:
            return self.ranks[0] in one or self.ranks[0] in other
        a, b = self.ranks
        return (a in one and b in other) or (b in one and a in other)


def border_factors(links: Iterable[SlowLink], stages: Sequence[Stage]) -> tuple[float, ...]:
    """Factor on transfers over each border of a pipeline: shards send side by side, and the slowest decides."""
    return tuple(
        [
            max([1.0, *[link.factor for link in links if link.joins(one.ranks, other.ranks)]])
            for one, other in pairwise(stages)
        ]
    )
