"""Which stamps belong together: both ends of each transfer, all members of each collective.

It follows from the channels alone, so it is worked out once and used for every frame that has the same channels.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Ints
from evenkeel.services.detector.domain.frames.traffic import (
    ChannelKind,
    TrafficObservation,
    stamps_entered,
    stamps_took,
)
from evenkeel.services.detector.domain.links.ties import Tie, Ties

Places = npt.NDArray[np.int16] | npt.NDArray[np.int32]
"""Indexes into a frame: as small as they can be, since a job's plan is kept from frame to frame."""

# Twice a tie's index and one more has to fit, too.
_SMALL = 1 << 14

_RECEIVED_FROM = {
    ChannelKind.ACTIVATION_RECEIVED: ChannelKind.ACTIVATION_SENT,
    ChannelKind.GRADIENT_RECEIVED: ChannelKind.GRADIENT_SENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """Indices into a frame's stamps. Transfers come first, then collectives.

    Attributes:
        ties: What is measured, pairs first.
        node_pairs: Names of two nodes, ascending.
        transfers: Of each transfer, one column each: tie; whether it goes from the lower to the higher rank; pair of
            nodes, index into ``node_pairs``, -1 within a node; whether it goes from the first to the second node of
            its pair; entry of the sender; entry of the receiver; index of the sender's entry stamp; of the receiver's;
            of the receiver's duration.
        collectives: Of each collective operation, one column each: tie; where it starts in ``collective_took``.
        collective_took: Indices of all members' durations, operation after operation.
    """

    ties: Ties
    node_pairs: tuple[tuple[str, str], ...]
    transfers: Places
    collectives: Places
    collective_took: Places


def plan_transfers(traffic: TrafficObservation, ranks: Ints, nodes: tuple[str, ...]) -> TransferPlan:
    """Finds the two ends of every transfer and the members of every collective; what lacks one is left out.

    Args:
        traffic: Channels; the stamps themselves do not matter.
        ranks: Rank of each entry of the frame.
        nodes: Node of each entry.
    """
    starts_entered = np.cumsum(stamps_entered(traffic.kinds, traffic.num_stamped)) - stamps_entered(
        traffic.kinds, traffic.num_stamped
    )
    starts_took = np.cumsum(stamps_took(traffic.kinds, traffic.num_stamped)) - stamps_took(
        traffic.kinds, traffic.num_stamped
    )
    builder = _Builder(traffic, ranks.tolist(), nodes, starts_entered.tolist(), starts_took.tolist())
    builder.add_transfers()
    builder.add_collectives()
    return builder.plan()


class _Builder:
    def __init__(
        self,
        traffic: TrafficObservation,
        ranks: list[int],
        nodes: tuple[str, ...],
        starts_entered: list[int],
        starts_took: list[int],
    ) -> None:
        self._owners, self._kinds = traffic.owners.tolist(), traffic.kinds.tolist()
        self._parties, self._members = traffic.parties.tolist(), traffic.num_members.tolist()
        self._counts = list(zip(traffic.num_operations.tolist(), traffic.num_stamped.tolist(), strict=True))
        self._ranks, self._nodes = ranks, nodes
        self._starts_entered, self._starts_took = starts_entered, starts_took
        self._ties: dict[tuple[int, int, int], int] = {}
        self._tie_list: list[Tie] = []
        self._node_pairs: dict[tuple[str, str], int] = {}
        self._transfers: list[tuple[int, bool, int, bool, int, int, int, int, int, int]] = []
        self._collectives: list[tuple[int, list[int], int]] = []

    def add_transfers(self) -> None:
        """Pairs up senders and receivers."""
        senders = {
            (self._ranks[self._owners[c]], self._parties[c], kind): c
            for c, kind in enumerate(self._kinds)
            if kind in (ChannelKind.ACTIVATION_SENT, ChannelKind.GRADIENT_SENT)
        }
        for c, kind in enumerate(self._kinds):
            sent_kind = _RECEIVED_FROM.get(kind)
            if sent_kind is None:
                continue
            sender, receiver = self._parties[c], self._ranks[self._owners[c]]
            other = senders.get((sender, receiver, sent_kind))
            if other is None or self._counts[other] != self._counts[c] or sender == receiver:
                continue
            from_entry, to_entry = self._owners[other], self._owners[c]
            from_node, to_node = self._nodes[from_entry], self._nodes[to_entry]
            pair = -1
            if from_node != to_node:
                names = (min(from_node, to_node), max(from_node, to_node))
                pair = self._node_pairs.setdefault(names, len(self._node_pairs))
            low, high = min(sender, receiver), max(sender, receiver)
            tie = self._tie(Tie(group=None, ranks=(low, high), crosses=pair >= 0))
            self._transfers.append(
                (
                    tie,
                    sender < receiver,
                    pair,
                    from_node < to_node,
                    from_entry,
                    to_entry,
                    self._starts_entered[other],
                    self._starts_entered[c],
                    self._starts_took[c],
                    self._counts[c][1],
                )
            )

    def add_collectives(self) -> None:
        """Gathers the members of each group."""
        groups: dict[tuple[int, int], list[int]] = {}
        for c, kind in enumerate(self._kinds):
            if kind == ChannelKind.COLLECTIVE:
                groups.setdefault((self._parties[c], self._members[c]), []).append(c)
        for (number, size), channels in groups.items():
            if len(channels) != size or size < 2 or len({self._counts[c] for c in channels}) != 1:
                continue
            entries = [self._owners[c] for c in channels]
            ranks = tuple(sorted(self._ranks[entry] for entry in entries))
            if len(set(ranks)) != size:
                continue
            crosses = len({self._nodes[entry] for entry in entries}) > 1
            tie = self._tie(Tie(group=number, ranks=ranks, crosses=crosses))
            self._collectives.append((tie, [self._starts_took[c] for c in channels], self._counts[channels[0]][1]))

    def plan(self) -> TransferPlan:
        """Everything added, as arrays."""
        rows = np.array(self._transfers, dtype=np.int32).reshape(len(self._transfers), 10)
        stamps = rows[:, 9]
        per_stamp = np.repeat(rows, stamps, axis=0)
        step = (np.arange(len(per_stamp)) - np.repeat(np.cumsum(stamps) - stamps, stamps)).astype(np.int32)
        ties: list[int] = []
        starts: list[int] = []
        took = [np.zeros(0, dtype=np.int32)]
        position = 0
        for tie, channel_starts, count in self._collectives:
            # Operation after operation, so that the members of each stand together.
            took.append(np.add.outer(np.arange(count), channel_starts).ravel().astype(np.int32))
            ties += [tie] * count
            starts += range(position, position + count * len(channel_starts), len(channel_starts))
            position += count * len(channel_starts)
        per_stamp[:, 6:9] += step[:, None]
        return TransferPlan(
            ties=Ties.of(self._tie_list),
            node_pairs=tuple(self._node_pairs),
            transfers=_places(per_stamp[:, :9].T),
            collectives=_places(np.array([ties, starts], dtype=np.int32)),
            collective_took=_places(np.concatenate(took)),
        )

    def _tie(self, tie: Tie) -> int:
        place = self._ties.setdefault(tie.key, len(self._tie_list))
        if place == len(self._tie_list):
            self._tie_list.append(tie)
        return place


def _places(indexes: npt.NDArray[np.int32]) -> Places:
    """A copy of their own, as a view of a column would hold all of them for as long as the plan lives."""
    if indexes.max(initial=0) < _SMALL:
        return indexes.astype(np.int16, order="C")
    return indexes.astype(np.int32, order="C")
