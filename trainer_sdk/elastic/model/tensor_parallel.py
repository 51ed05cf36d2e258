"""Tensor parallelism inside a stage: the two conjugate operators of Megatron-LM (arXiv 1909.08053), any widths.

``enter`` starts a region in which each shard computes with its own slice (identity forward, reduction of gradients
backward); ``leave`` ends it (reduction forward, identity backward). Widths do not appear here: a shard that holds
nothing adds zeros.
"""

import torch
from torch import Tensor

from evenkeel.trainer_sdk.elastic.measure.wait_kind import WaitKind
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.groups.group import Group, Reduction


class TensorRegion:
    """The shards of one stage.

    Args:
        group: Their group; None when one shard holds the stage.
        phases: Told of waits and operations.
    """

    def __init__(self, group: Group | None, phases: Phases) -> None:
        self._group = group
        self._phases = phases

    def enter(self, x: Tensor, flops: float) -> Tensor:
        """Start a region whose backward takes ``flops`` on this shard; they are counted when it ends."""

        def reduced(gradient: Tensor) -> Tensor:
            self.count(flops)
            # A copy: autograd may hand the same tensor to other branches.
            return self.reduce(gradient.clone(memory_format=torch.contiguous_format))

        entered = x.view_as(x)
        entered.register_hook(reduced)  # type: ignore[no-untyped-call]
        return entered

    def leave(self, x: Tensor, flops: float) -> Tensor:
        """End a region whose forward took ``flops`` on this shard: the sum over shards."""
        self.count(flops)
        left = x.clone(memory_format=torch.contiguous_format)
        self.reduce(left.detach())  # beside the graph, so that the gradient passes as it is
        return left

    def reduce(self, x: Tensor, op: Reduction = Reduction.SUM) -> Tensor:
        """Reduce over shards in place, waiting interruptibly."""
        group = self._group
        if group is not None:
            self._phases.waits(WaitKind.TENSOR, group.others, lambda: group.all_reduce(x, op))
        return x

    def count(self, flops: float) -> None:
        """Operations that were just done."""
        self._phases.add(flops)


def sharded_cross_entropy(logits: Tensor, targets: Tensor, first: int, region: TensorRegion) -> Tensor:
    """Cross-entropy summed over tokens; each shard has the logits of its own slice of the vocabulary.

    Args:
        logits: [N, held], the columns from ``first`` on.
        targets: [N], indices into the whole vocabulary.
        first: First vocabulary entry of this shard.
        region: The stage's shards.

    Returns:
        The whole sum, the same on every shard.
    """
    tokens, held = logits.shape
    largest = logits.detach().amax(dim=1) if held else logits.new_full((tokens,), float("-inf"))
    shifted = logits - region.reduce(largest, Reduction.MAX)[:, None]
    local = targets - first
    rows = ((local >= 0) & (local < held)).nonzero()[:, 0]
    own_targets = logits.new_zeros(tokens).index_put((rows,), shifted[rows, local[rows]])
    sums = region.leave(torch.stack((shifted.exp().sum(dim=1), own_targets)), 0.0)
    return (sums[0].log() - sums[1]).sum()
