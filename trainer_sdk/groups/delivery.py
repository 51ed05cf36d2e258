"""Pieces of tensors from rank to rank, when an epoch begins: everybody knows who sends what to whom.

Where one group holds all participants it is an all-to-all in it. Else each pair with something to say gets a group of
its own: a rank talks to few, and a group of everybody would cost it a connection to each.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """``[start, stop)`` of a parameter's cut axis, so many elements, goes from one rank to another, or stays there."""

    name: str
    start: int
    stop: int
    num_elements: int
    source: int
    destination: int


M = TypeVar("M", bound=Move)


class Delivery:
    """One rank's deliveries in one epoch. Training thread only.

    Args:
        rank: This rank.
        epoch: Epoch.
        builder: Builds groups of two.
        groups: The epoch's groups by name; those that are built are added.
        whole: The group of all participants; None where there is none.
    """

    def __init__(
        self, rank: int, epoch: int, builder: GroupBuilder, groups: dict[str, Group], whole: Group | None
    ) -> None:
        self._rank = rank
        self._epoch = epoch
        self._builder = builder
        self._groups = groups
        self._whole = whole

    def carry_out(
        self,
        moves: Sequence[M],
        *,
        read: Callable[[M], Iterable[Tensor]],
        write: Callable[[M, Tensor], None],
        num_tensors: int,
        like: Tensor,
    ) -> None:
        """One exchange for all of these; all participants call it with their own, and who has none with none.

        Args:
            moves: In an order that both ends of each have in common.
            read: At its source: its tensors.
            write: At its destination: takes their elements in a row.
            num_tensors: How many each has.
            like: Has the type and the device of all tensors.

        Raises:
            WaitBroken: The rank should park; what was read is untouched.
        """
        outgoing: dict[int, list[Tensor]] = defaultdict(list)
        expected: Counter[int] = Counter()
        for move in moves:
            if move.source == self._rank:
                outgoing[move.destination] += [tensor.reshape(-1) for tensor in read(move)]
                self._builder.moved()
            if move.destination == self._rank:
                expected[move.source] += num_tensors * move.num_elements
        arrived = self.exchange(outgoing, expected, like)
        start: Counter[int] = Counter()
        for move in moves:
            if move.destination == self._rank:
                first = start[move.source]
                start[move.source] += num_tensors * move.num_elements
                write(move, arrived[move.source][first : start[move.source]])
                self._builder.moved()

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
        pairs = self._pairs_with({*outgoing, *expected} - {self._rank})
        arriving = {peer: like.new_empty(size) for peer, size in expected.items()}
        if self._rank in expected:  # what it keeps of a rank whose place it takes
            arriving[self._rank] = torch.cat(tuple(outgoing[self._rank]))
        pending = []
        for group in pairs:
            for sender, receiver in (group.ranks, group.ranks[::-1]):
                if sender == self._rank and receiver in outgoing:
                    pending.append(group.start_broadcast(torch.cat(tuple(outgoing[receiver])), sender))
                elif receiver == self._rank and sender in arriving:
                    pending.append(group.start_broadcast(arriving[sender], sender))
        for each in pending:
            self._builder.waits((), each.wait)
        return arriving

    def _pairs_with(self, peers: set[int]) -> list[Group]:
        """Groups of two with these ranks, in the order in which all ranks build theirs."""
        pairs = sorted((min(peer, self._rank), max(peer, self._rank)) for peer in peers)
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
