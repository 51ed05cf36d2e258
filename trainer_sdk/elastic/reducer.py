"""Sums the gradients of an iteration over micro-batches on this rank, then over replicas.

Sums are float64 whatever the parameters are: which replica ran which micro-batch then changes the result by less than
the rounding of one float32 backward.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer_sdk.elastic.clock import Clock, WaitKind
from trainer_sdk.elastic.exchange import Bucket
from trainer_sdk.elastic.ownership import OwnershipMap
from trainer_sdk.elastic.topology import collective_name
from trainer_sdk.groups.group import Group, Pending


class GradientReducer:
    """The gradients of one rank in one epoch.

    Args:
        ownership: Who holds what.
        rank: This rank.
        buckets: All buckets of the layout.
        groups: The epoch's groups by name.
        clock: Told of waits.
        device: Where gradients live.
    """

    def __init__(
        self,
        ownership: OwnershipMap,
        rank: int,
        buckets: Sequence[Bucket],
        groups: Mapping[str, Group],
        clock: Clock,
        device: torch.device,
    ) -> None:
        self._ownership = ownership
        self._rank = rank
        self._held = ownership.held_by(rank)
        self._buckets = [bucket for bucket in buckets if rank in bucket.ranks]
        self._groups = groups
        self._clock = clock
        self.gradients: dict[str, Tensor] = {
            name: torch.zeros(ownership.specs[name].slice_shape(len(held)), dtype=torch.float64, device=device)
            for name, held in self._held.items()
        }
        self._buffers = [
            torch.zeros(bucket.num_elements, dtype=torch.float64, device=device) for bucket in self._buckets
        ]

    def clear(self) -> None:
        """Forget everything: an iteration begins, or begins again."""
        for gradient in self.gradients.values():
            gradient.zero_()

    def accumulate(self, parameters: Mapping[str, Tensor]) -> None:
        """Take over the gradients of one micro-batch and clear them."""
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                self.gradients[name] += parameter.grad
                parameter.grad = None

    def reduce(self) -> None:
        """Sum over replicas; afterwards every holder of a piece has the same sum, bit for bit.

        Raises:
            Interrupted: The rank should park.
            PeerLost: A holder is gone.
        """
        waits: list[tuple[Group, Pending]] = []
        for bucket, buffer in zip(self._buckets, self._buffers, strict=True):
            self._fill(bucket, buffer)
            if len(bucket.ranks) > 1:
                group = self._groups[collective_name(bucket.ranks)]
                waits.append((group, group.start_all_reduce(buffer)))
        for group, pending in waits:
            self._clock.wait(WaitKind.GRADIENT, group.others, pending.wait)
        for bucket, buffer in zip(self._buckets, self._buffers, strict=True):
            self._scatter(bucket, buffer)

    def squared_norm_part(self) -> float:
        """This rank's part of the squared global norm: of each piece, one holder counts it. After :meth:`reduce`."""
        total = 0.0
        for bucket, buffer in zip(self._buckets, self._buffers, strict=True):
            if bucket.ranks[0] == self._rank:
                total += float(buffer.dot(buffer))
        return total

    def _fill(self, bucket: Bucket, buffer: Tensor) -> None:
        start = 0
        for piece in bucket.pieces:
            view = self._view(piece.name, piece.start, piece.stop)
            part = buffer[start : start + view.numel()].view(view.shape)
            if self._rank in piece.contributors:
                part.copy_(view)
            else:
                part.zero_()
            start += view.numel()

    def _scatter(self, bucket: Bucket, buffer: Tensor) -> None:
        start = 0
        for piece in bucket.pieces:
            view = self._view(piece.name, piece.start, piece.stop)
            view.copy_(buffer[start : start + view.numel()].view(view.shape))
            start += view.numel()

    def _view(self, name: str, start: int, stop: int) -> Tensor:
        axis = self._ownership.specs[name].cut_axis
        return self.gradients[name].narrow(axis, start - self._held[name].start, stop - start)
