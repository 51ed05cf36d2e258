"""The channels of a rank in an epoch: which groups are measured, as what, and how the sample carries their stamps."""

from collections.abc import Mapping, Sequence

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.traffic import group_number, stamped_indices
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.elastic.program.topology import borders_of, collective_name
from evenkeel.trainer_sdk.groups.channel import Channel, Stamps
from evenkeel.trainer_sdk.groups.group import Group

_SENT = {False: pb.CHANNEL_KIND_ACTIVATION_SENT, True: pb.CHANNEL_KIND_GRADIENT_SENT}
_RECEIVED = {False: pb.CHANNEL_KIND_ACTIVATION_RECEIVED, True: pb.CHANNEL_KIND_GRADIENT_RECEIVED}


class Traffic:
    """Measures the operations of one rank with others. Training thread only.

    Groups on an accelerator are left alone: what is stamped on the host there is when work was queued, not when it ran.

    Args:
        rank: This rank.
        links: What stands between ranks; None = nothing worth measuring, such as the loopback of one machine, where
            how long an operation takes says how busy the cores are.
    """

    def __init__(self, rank: int, links: Links | None) -> None:
        self._rank = rank
        self._links = links
        self._channels: list[Channel] = []

    def attach(self, layout: Layout, groups: Mapping[str, Group]) -> None:
        """Measure the groups of a new epoch: stage borders, shards and gradient exchange; not the vote, not moves."""
        self._channels = []
        if self._links is None:
            return
        opened = set()
        for border in borders_of(layout):
            group = groups.get(border.group_name)
            ends = border.sender, border.receiver, border.is_gradient
            # Micro-batches of several homes may pass between two ranks: one channel says enough of the link.
            if group is None or self._rank not in ends[:2] or ends in opened:
                continue
            opened.add(ends)
            sends = border.sender == self._rank
            kind = (_SENT if sends else _RECEIVED)[border.is_gradient]
            self._open(group, kind, border.receiver if sends else border.sender, self._links, sends=sends)
        for name, group in groups.items():
            if name == collective_name(group.ranks):
                self._open(group, pb.CHANNEL_KIND_COLLECTIVE, group_number(group.ranks), self._links, sends=False)

    def take(self) -> list[Stamps]:
        """What was measured since the last take."""
        return [channel.take() for channel in self._channels]

    def _open(self, group: Group, kind: int, party: int, links: Links, *, sends: bool) -> None:
        if not group.on_cpu:
            return
        group.channel = Channel(kind=kind, party=party, ranks=group.ranks, sends=sends, links=links, check=group.check)
        self._channels.append(group.channel)


def traffic_message(channels: Sequence[Stamps], started_seconds: float) -> pb.Traffic:
    """The wire form of an iteration's stamps.

    Args:
        channels: What :meth:`Traffic.take` gave.
        started_seconds: The iteration's start on the clock of the stamps.
    """
    message = pb.Traffic()
    for kind, party, num_members, entered, took, num_bytes in channels:
        if not entered:
            continue
        chosen = stamped_indices(len(entered))
        message.kinds.append(pb.ChannelKind.ValueType(kind))
        message.parties.append(party)
        message.num_members.append(num_members)
        message.num_operations.append(len(entered))
        message.num_bytes.append(sum(num_bytes))
        message.num_stamped.append(len(chosen))
        if kind != pb.CHANNEL_KIND_COLLECTIVE:
            message.entered_microseconds.extend([_microseconds(entered[k] - started_seconds) for k in chosen])
        if took:
            message.took_microseconds.extend([_microseconds(took[k]) for k in chosen])
            message.stamped_bytes.extend([num_bytes[k] for k in chosen])
    return message


def _microseconds(seconds: float) -> int:
    return min(max(round(seconds * 1e6), 0), 0xFFFFFFFF)
