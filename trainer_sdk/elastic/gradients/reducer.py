"""Reduces a rank's gradient sums over replicas, bucket by bucket."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from evenkeel.trainer_sdk.elastic.gradients.exchange import Bucket, Piece
from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.measure.clock import Clock, WaitKind
from evenkeel.trainer_sdk.elastic.program.topology import collective_name
from evenkeel.trainer_sdk.groups.group import Group, Pending


class GradientReducer:
    """The gradient exchange of one rank in one epoch.

    Args:
        sums: This rank's sums.
        rank: This rank.
        buckets: All buckets of the layout.
        groups: The epoch's groups by name.
        clock: Told of waits.
        device: Where gradients live.
    """

    def __init__(
        self,
        sums: GradientSums,
        rank: int,
        buckets: Sequence[Bucket],
        groups: Mapping[str, Group],
        clock: Clock,
        device: torch.device,
    ) -> None:
        self._sums = sums
        self._rank = rank
        self._buckets = [bucket for bucket in buckets if rank in bucket.ranks]
        self._groups = groups
        self._clock = clock
        self._buffers = [
            torch.zeros(bucket.num_elements, dtype=torch.float64, device=device) for bucket in self._buckets
        ]

    def reduce(self) -> None:
        """Sum over replicas; afterwards every holder of a piece has the same sum, bit for bit.

        What is reduced when it is interrupted stays reduced: it has every micro-batch, so nobody has to run them again
        for it.

        Raises:
            Interrupted: The rank should park.
            PeerLost: A holder is gone.
        """
        waits: list[tuple[Bucket, Tensor, Group | None, Pending | None]] = []
        for bucket, buffer in zip(self._buckets, self._buffers, strict=True):
            for piece, part in self._parts(bucket, buffer):
                if self._rank in piece.contributors:
                    part.copy_(self._sums.local(piece.name, piece.start, piece.stop))
                else:
                    part.zero_()
            group = self._groups[collective_name(bucket.ranks)] if len(bucket.ranks) > 1 else None
            waits.append((bucket, buffer, group, group.start_all_reduce(buffer) if group is not None else None))
        for bucket, buffer, group, pending in waits:
            if group is not None and pending is not None:
                self._clock.wait(WaitKind.GRADIENT, group.others, pending.wait)
            for piece, part in self._parts(bucket, buffer):
                self._sums.settle(piece.name, piece.start, piece.stop, part)

    def squared_norm_part(self) -> float:
        """This rank's part of the squared global norm: of each piece, one holder counts it. After :meth:`reduce`."""
        total = 0.0
        for bucket, buffer in zip(self._buckets, self._buffers, strict=True):
            if bucket.ranks[0] == self._rank:
                total += float(buffer.dot(buffer))
        return total

    def _parts(self, bucket: Bucket, buffer: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """Each piece of a bucket and its part of the buffer, in the shape of the piece."""
        start = 0
        for piece in bucket.pieces:
            shape = self._sums.local(piece.name, piece.start, piece.stop).shape
            part = buffer[start : start + shape.numel()].view(shape)
            yield piece, part
            start += part.numel()
