"""How long building the process groups of an epoch takes as jobs grow.

Measured or published times to build communicators: 60 ms for 8 ranks (ours, gloo), under 5 s for 2,048 (MegaScale),
and by FT-HSDP (arXiv 2602.00277) for whole jobs 17, 30, 100 and 200 s with 16 K, 22 K, 64 K and 98 K ranks. A group of
n ranks is taken to cost what lies on the straight lines between these points in log-log scale; groups of different
ranks are built side by side, those of one rank one after another. Nobody has measured ours beyond tens of ranks.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.ranks.levels import WIDEST_GROUP, Levels, levels_of

PUBLISHED_SECONDS = ((8, 0.06), (2_048, 5.0), (16_384, 17.0), (22_528, 30.0), (65_536, 100.0), (98_304, 200.0))


class Vote(StrEnum):
    """How the step vote is held: in one group of all ranks, or in levels (:mod:`evenkeel.layouts.ranks.levels`)."""

    FLAT = "flat"
    LEVELS = "levels"


def group_seconds(num_ranks: int) -> float:
    """Seconds to build one group.

    >>> group_seconds(16384)
    17.0
    """
    points = PUBLISHED_SECONDS
    if num_ranks <= 1:
        return 0.0
    upper = next((i for i, (size, _) in enumerate(points) if num_ranks <= size), len(points) - 1)
    (small, less), (large, more) = points[max(0, upper - 1)], points[max(1, upper)]
    slope = math.log(more / less) / math.log(large / small)
    return less * math.exp(slope * math.log(num_ranks / small))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBuilding:
    """Parts of one epoch's building, seconds, one after another for each rank.

    Attributes:
        tensor: The group of its stage.
        pipeline: Pairs with its neighbours.
        data: The ranks of all replicas that hold the same piece: those of one shard, and, for what every shard of a
            stage holds whole, those of all.
        vote: The step vote.
    """

    tensor: float
    pipeline: float
    data: float
    vote: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.tensor + self.pipeline + self.data + self.vote


def group_building(layout: Layout, vote: Vote = Vote.LEVELS) -> GroupBuilding:
    """What building the groups of a layout takes.

    Args:
        layout: The layout.
        vote: How the vote is held.
    """
    num_ranks = sum(len(stage.ranks) for replica in layout.replicas for stage in replica.stages)
    widest = max(len(stage.ranks) for replica in layout.replicas for stage in replica.stages)
    num_replicas = len(layout.replicas)
    deepest = max(len(replica.stages) for replica in layout.replicas)
    return GroupBuilding(
        tensor=group_seconds(widest),
        pipeline=2.0 * group_seconds(2) if deepest > 1 else 0.0,
        data=group_seconds(num_replicas) + (group_seconds(widest * num_replicas) if widest > 1 else 0.0),
        vote=sum(group_seconds(max(len(group) for group in groups)) for groups in _levels(num_ranks, vote)),
    )


def _levels(num_ranks: int, vote: Vote) -> Levels:
    return levels_of(range(num_ranks), max(2, num_ranks) if vote is Vote.FLAT else WIDEST_GROUP)
