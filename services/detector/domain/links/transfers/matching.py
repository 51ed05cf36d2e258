"""Which stamps belong together: both ends of each transfer, all members of each collective.

It follows from the channels alone, so it is worked out once and used for every frame that has the same channels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Ints
from evenkeel.services.detector.domain.frames.ties import Tie, Ties
from evenkeel.services.detector.domain.frames.traffic import (
    ChannelKind,
    TrafficObservation,
    stamps_entered,
    stamps_took,
)

Places = npt.NDArray[np.int16] | npt.NDArray[np.int32]
"""Indexes into a frame: as small as they can be, since a job's plan is kept from frame to frame."""

# Twice a tie's index and one more has to fit, too.
_SMALL = 1 << 14

_RECEIVED_FROM: dict[int, int] = {
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


class _Channel(NamedTuple):
    """A channel: whose it is, what goes through it, and where its stamps begin among those of the frame.

    ``counts`` are its operations and how many of them are stamped: alike at both ends, and at all members of a group.
    """

    rank: int
    node: str
    entry: int
    kind: int
    party: int
    num_members: int
    entered_at: int
    took_at: int
    counts: tuple[int, int]


def plan_transfers(traffic: TrafficObservation, ranks: Ints, nodes: tuple[str, ...]) -> TransferPlan:
    """Finds the two ends of every transfer and the members of every collective; what lacks one is left out.

    Args:
        traffic: Channels; the stamps themselves do not matter.
        ranks: Rank of each entry of the frame.
        nodes: Node of each entry.
    """
    channels = _channels(traffic, ranks.tolist(), nodes)
    ties: dict[Tie, int] = {}
    node_pairs: dict[tuple[str, str], int] = {}
    transfers = []
    for sent, received in _transfers(channels):
        low, high = sorted((sent.rank, received.rank))
        tie, pair = Tie(group=None, ranks=(low, high), crosses=sent.node != received.node), -1
        if tie.crosses:
            names = min(sent.node, received.node), max(sent.node, received.node)
            pair = node_pairs.setdefault(names, len(node_pairs))
        stamps = sent.entered_at, received.entered_at, received.took_at
        upward, first = sent.rank < received.rank, sent.node < received.node
        place = ties.setdefault(tie, len(ties))
        transfers.append((place, upward, pair, first, sent.entry, received.entry, *stamps, sent.counts[1]))
    rows = np.array(transfers, dtype=np.int32).reshape(len(transfers), 10)
    counts = rows[:, 9]
    per_stamp = np.repeat(rows, counts, axis=0)
    step = np.arange(len(per_stamp)) - np.repeat(np.cumsum(counts) - counts, counts)
    per_stamp[:, 6:9] += step[:, None].astype(np.int32)
    tie_of: list[int] = []
    sizes: list[int] = []
    took = [np.zeros(0, dtype=np.int32)]
    for tie, members in _collectives(channels):
        place, count = ties.setdefault(tie, len(ties)), members[0].counts[1]
        # Operation after operation, so that the members of each stand together.
        took.append(np.add.outer(np.arange(count), [one.took_at for one in members]).ravel().astype(np.int32))
        tie_of += [place] * count
        sizes += [len(members)] * count
    starts = np.cumsum(sizes, dtype=np.int32) - np.array(sizes, dtype=np.int32)
    return TransferPlan(
        ties=Ties.of(ties),
        node_pairs=tuple(node_pairs),
        transfers=_places(per_stamp[:, :9].T),
        collectives=_places(np.array([tie_of, starts], dtype=np.int32)),
        collective_took=_places(np.concatenate(took)),
    )


def _channels(traffic: TrafficObservation, ranks: Sequence[int], nodes: Sequence[str]) -> list[_Channel]:
    kinds, stamped = traffic.kinds, traffic.num_stamped
    begins = [np.cumsum(counts) - counts for counts in (stamps_entered(kinds, stamped), stamps_took(kinds, stamped))]
    columns = (traffic.owners, kinds, traffic.parties, traffic.num_members, *begins)
    counts = zip(traffic.num_operations.tolist(), stamped.tolist(), strict=True)
    told = zip(*(column.tolist() for column in columns), counts, strict=True)
    return [_Channel(ranks[entry], nodes[entry], entry, *rest) for entry, *rest in told]


def _transfers(channels: Sequence[_Channel]) -> Iterator[tuple[_Channel, _Channel]]:
    """Where transfers are sent, and where they are received."""
    sent_kinds = _RECEIVED_FROM.values()
    senders = {(one.rank, one.party, one.kind): one for one in channels if one.kind in sent_kinds}
    for one in channels:
        other = senders.get((one.party, one.rank, _RECEIVED_FROM.get(one.kind, -1)))
        if other is not None and other.rank != one.rank and other.counts == one.counts:
            yield other, one


def _collectives(channels: Sequence[_Channel]) -> Iterator[tuple[Tie, list[_Channel]]]:
    """The members of each group."""
    groups: dict[tuple[int, int], list[_Channel]] = {}
    for one in channels:
        if one.kind == ChannelKind.COLLECTIVE:
            groups.setdefault((one.party, one.num_members), []).append(one)
    for (number, size), members in groups.items():
        ranks = tuple(sorted({one.rank for one in members}))
        if size > 1 and len(members) == len(ranks) == size and len({one.counts for one in members}) == 1:
            yield Tie(group=number, ranks=ranks, crosses=len({one.node for one in members}) > 1), members


def _places(indexes: npt.NDArray[np.int32]) -> Places:
    """A copy of their own, as a view of a column would hold all of them for as long as the plan lives."""
    if indexes.max(initial=0) < _SMALL:
        return indexes.astype(np.int16, order="C")
    return indexes.astype(np.int32, order="C")
