"""The process groups that a layout needs, as few as possible: groups of the same ranks are one group."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from layouts.layout import Layout
from trainer_sdk.elastic.exchange import Bucket
from trainer_sdk.elastic.transfers import Copy
from trainer_sdk.groups.builder import GroupSpec

WORLD = "world"
"""All ranks of the layout: the step vote."""

TRANSFER = "transfer"
"""All ranks of the layout, and those that leave but hold what others need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """A stage border between two ranks in one direction."""

    sender: int
    receiver: int
    is_gradient: bool

    @property
    def group_name(self) -> str:
        """A group of its own: broadcasts of one group must be issued in the same order at both ends."""
        return f"{'gradient' if self.is_gradient else 'activation'}/{self.sender}-{self.receiver}"


def collective_name(ranks: Iterable[int]) -> str:
    """Name of the group of these ranks for blocking collectives."""
    return "ranks/" + ",".join(str(rank) for rank in sorted(ranks))


def borders_of(layout: Layout) -> tuple[Border, ...]:
    """Every border that tensors cross.

    Shards of a stage all end with the same activation, so with different widths on the two sides each receiver t takes
    it from sender t modulo the senders; gradients are the mirror image.
    """
    borders = []
    for replica in layout.replicas:
        for before, after in zip(replica.stages[:-1], replica.stages[1:], strict=True):
            borders += [
                Border(sender=before.ranks[t % len(before.ranks)], receiver=rank, is_gradient=False)
                for t, rank in enumerate(after.ranks)
            ]
            borders += [
                Border(sender=after.ranks[t % len(after.ranks)], receiver=rank, is_gradient=True)
                for t, rank in enumerate(before.ranks)
            ]
    return tuple(borders)


def transfer_participants(layout: Layout, copies: Sequence[Copy], holders: Iterable[int] = ()) -> tuple[int, ...]:
    """Who must take part in the move to ``layout``, ascending: its ranks, and leavers that have something to give.

    Args:
        layout: Layout to reach.
        copies: Slices that move.
        holders: Ranks that hold sums of an interrupted iteration.
    """
    return tuple(sorted({*layout.ranks, *(copy.source for copy in copies), *holders}))


def groups_of(layout: Layout, buckets: Sequence[Bucket], participants: Iterable[int]) -> tuple[GroupSpec, ...]:
    """All groups of an epoch, in the order in which every rank builds them.

    Args:
        layout: Layout.
        buckets: Its gradient exchange.
        participants: Who takes part in the move to it; ranks of the layout need not be named.
    """
    specs = [GroupSpec(name=WORLD, ranks=layout.ranks)]
    everybody = tuple(sorted({*layout.ranks, *participants}))
    if everybody != layout.ranks:
        specs.append(GroupSpec(name=TRANSFER, ranks=everybody))
    shards = [stage.ranks for replica in layout.replicas for stage in replica.stages]
    sets = {tuple(sorted(ranks)) for ranks in [*shards, *(bucket.ranks for bucket in buckets)] if len(ranks) > 1}
    specs += [GroupSpec(name=collective_name(ranks), ranks=ranks) for ranks in sorted(sets)]
    specs += [
        GroupSpec(name=border.group_name, ranks=(border.sender, border.receiver)) for border in borders_of(layout)
    ]
    return tuple(specs)
