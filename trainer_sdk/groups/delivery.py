"""Pieces of tensors from rank to rank, when an epoch begins: everybody knows who sends what to whom.

Where one group holds all participants it is an all-to-all in it. Else each pair with something to say gets a group of
its own: a rank talks to few, and a group of everybody would cost it a connection to each.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.group import Group


class Delivery:
    """One rank's deliveries in one epoch. Training thread only.

    Args:
        rank: This rank.
        epoch: Epoch.
        builder: Builds groups of two.
        groups: The epoch's groups by name; those that are built are added.
        whole: The group of all participants; None where there is none.

    Attributes:
        rank: As given.
    """

    def __init__(
        self, rank: int, epoch: int, builder: GroupBuilder, groups: dict[str, Group], whole: Group | None
    ) -> None:
        self.rank = rank
        self._epoch = epoch
        self._builder = builder
        self._groups = groups
        self._whole = whole

    def exchange(
        self, outgoing: Mapping[int, Sequence[Tensor]], expected: Mapping[int, int], like: Tensor
    ) -> dict[int, Tensor]:
        """Send, and receive; all participants call it, also those who have nothing to say.

        Args:
            outgoing: Flat pieces for each rank, in the order in which they arrive.
            expected: Elements that each rank sends to this one.
            like: Has the type and the device of all tensors.

        Returns:
            What each of ``expected`` sent, in one flat tensor.

        Raises:
            WaitBroken: The rank should park.
        """
        if self._whole is not None:
            return self._all_to_all(self._whole, outgoing, expected, like)
        pairs = self._pairs_with({*outgoing, *expected} - {self.rank})
        arriving = {peer: like.new_empty(size) for peer, size in expected.items()}
        if self.rank in expected:  # what it keeps of a rank whose place it takes
            arriving[self.rank] = torch.cat(tuple(outgoing[self.rank]))
        pending = []
        for group in pairs:
            for sender, receiver in (group.ranks, group.ranks[::-1]):
                if sender == self.rank and receiver in outgoing:
                    pending.append(group.start_broadcast(torch.cat(tuple(outgoing[receiver])), sender))
                elif receiver == self.rank and sender in arriving:
                    pending.append(group.start_broadcast(arriving[sender], sender))
        for each in pending:
            self._builder.waits((), each.wait)
        return arriving

    def _pairs_with(self, peers: set[int]) -> list[Group]:
        """Groups of two with these ranks, in the order in which all ranks build theirs."""
        pairs = sorted((min(peer, self.rank), max(peer, self.rank)) for peer in peers)
        specs = [GroupSpec(name=f"pair/{low}-{high}", ranks=(low, high)) for low, high in pairs]
        self._groups |= self._builder.add(self._epoch, [spec for spec in specs if spec.name not in self._groups])
        return [self._groups[spec.name] for spec in specs]

    def _all_to_all(
        self, group: Group, outgoing: Mapping[int, Sequence[Tensor]], expected: Mapping[int, int], like: Tensor
    ) -> dict[int, Tensor]:
        pieces = [piece for rank in group.ranks for piece in outgoing.get(rank, ())]
        sent = [sum(piece.numel() for piece in outgoing.get(rank, ())) for rank in group.ranks]
        received = [expected.get(rank, 0) for rank in group.ranks]
        mine = torch.cat(pieces) if pieces else like.new_empty(0)
        incoming = self._builder.waits(group.others, partial(group.all_to_all, mine, sent, received))
        return dict(zip(group.ranks, torch.split(incoming, received), strict=True))
