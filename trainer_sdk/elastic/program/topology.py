"""The process groups that a layout needs, as few as possible: groups of the same ranks are one group."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from evenkeel.layouts.layout import Layout, Stage
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.ranks.levels import WIDEST_GROUP
from evenkeel.trainer_sdk.elastic.gradients.exchange import plan_exchange
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.groups.building.assembly import assembly_specs
from evenkeel.trainer_sdk.groups.building.builder import GroupSpec

WORLD = "world"
"""The assembly of all ranks of the layout: the step vote."""

TRANSFER = "transfer"
"""The assembly of all ranks of the layout, and of those that leave but hold what others need."""

_ACTIVATION, _GRADIENT, _RANKS = _IN_ITERATIONS = ("activation/", "gradient/", "ranks/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """A stage border between two ranks in one direction.

    Attributes:
        sender: Who sends.
        receiver: Who receives.
        is_gradient: Direction: back to the stage before.
        home: Replica whose micro-batches pass it.
        sender_replica: Replica of the sender; its home where nothing is routed.
        receiver_replica: Replica of the receiver; likewise.
        stage: Stage before the border.
    """

    sender: int
    receiver: int
    is_gradient: bool
    home: int
    sender_replica: int
    receiver_replica: int
    stage: int

    @property
    def group_name(self) -> str:
        """A group of its own: broadcasts of one group must be issued in the same order at both ends.

        Micro-batches of several homes, and those at several stages of the same ranks, may take turns differently there.
        """
        direction = _GRADIENT if self.is_gradient else _ACTIVATION
        return f"{direction}{self.sender}-{self.receiver}/{self.home}/{self.stage}"


def collective_name(ranks: Iterable[int]) -> str:
    """Name of the group of these ranks for blocking collectives."""
    return _RANKS + ",".join(str(rank) for rank in sorted(ranks))


def is_idle_between_iterations(group_name: str) -> bool:
    """Whether it is the group of a border or of blocking collectives: nothing is on its way there at a step vote."""
    return group_name.startswith(_IN_ITERATIONS)


def borders_of(layout: Layout) -> tuple[Border, ...]:
    """Every border that tensors cross.

    Shards of a stage all end with the same activation, so with different widths on the two sides each receiver t takes
    it from sender t modulo the senders; gradients are the mirror image. Nothing crosses where the same ranks hold the
    stages on both sides.
    """
    borders = []
    for d, replica in enumerate(layout.replicas):
        for s, (before, after) in enumerate(pairwise(replica.stages)):
            if before.ranks != after.ranks:
                borders += _between(before, after, d, d, d, s)
    if layout.routes:
        for home, s, first, second in Paths(layout).crossings():
            before, after = layout.replicas[first].stages[s], layout.replicas[second].stages[s + 1]
            borders += _between(before, after, home, first, second, s)
    return tuple(borders)


def _between(before: Stage, after: Stage, home: int, first: int, second: int, stage: int) -> list[Border]:
    """Both directions between stage ``stage``, of replica ``first``, and the next one, of replica ``second``."""
    return [
        Border(
            sender=senders.ranks[t % len(senders.ranks)],
            receiver=rank,
            is_gradient=is_gradient,
            home=home,
            sender_replica=sender_replica,
            receiver_replica=receiver_replica,
            stage=stage,
        )
        for is_gradient, senders, receivers, sender_replica, receiver_replica in (
            (False, before, after, first, second),
            (True, after, before, second, first),
        )
        for t, rank in enumerate(receivers.ranks)
    ]


def groups_of(
    ownership: OwnershipMap, participants: Iterable[int] = (), vote_width: int = WIDEST_GROUP
) -> tuple[GroupSpec, ...]:
    """All groups of an epoch, in the order in which every rank builds them.

    Args:
        ownership: Of its layout.
        participants: Who takes part in the move to it; ranks of the layout need not be named.
        vote_width: Most ranks of a group of an assembly.
    """
    layout = ownership.layout
    specs = [*assembly_specs(WORLD, layout.ranks, vote_width)]
    everybody = tuple(sorted({*layout.ranks, *participants}))
    if everybody != layout.ranks:
        specs += assembly_specs(TRANSFER, everybody, vote_width)
    shards = [stage.ranks for replica in layout.replicas for stage in replica.stages]
    sets = {
        tuple(sorted(ranks))
        for ranks in [*shards, *(bucket.ranks for bucket in plan_exchange(ownership))]
        if len(ranks) > 1
    }
    specs += [GroupSpec(name=collective_name(ranks), ranks=ranks) for ranks in sorted(sets)]
    specs += [
        GroupSpec(name=border.group_name, ranks=(border.sender, border.receiver)) for border in borders_of(layout)
    ]
    return tuple(specs)
