"""The channels of a rank in an epoch: which groups are measured, as what, and what is taken of them."""

from collections.abc import Mapping

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.ranks.traffic import group_number
from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.elastic.program.topology import borders_of, collective_name
from evenkeel.trainer_sdk.emit.measured import Stamps
from evenkeel.trainer_sdk.groups.channel import Channel
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
