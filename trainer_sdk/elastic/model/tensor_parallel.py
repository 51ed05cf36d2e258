"""Tensor parallelism inside a stage: the two conjugate operators of Megatron-LM (arXiv 1909.08053), any widths.

``enter`` starts a region in which each shard computes with its own slice (identity forward, reduction of gradients
backward); ``leave`` ends it (reduction forward, identity backward). Widths do not appear here: a shard that holds
nothing adds zeros.
"""

from typing import Any

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
        entered: Tensor = _Enter.apply(x, self, flops)
        return entered

    def leave(self, x: Tensor, flops: float) -> Tensor:
        """End a region whose forward took ``flops`` on this shard: the sum over shards."""
        left: Tensor = _Leave.apply(x, self, flops)
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


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: TensorRegion, flops: float) -> Tensor:
        ctx.region, ctx.flops = region, flops
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.region.count(ctx.flops)
        # A copy: autograd may hand the same tensor to other branches.
        return ctx.region.reduce(gradient.clone(memory_format=torch.contiguous_format)), None, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: TensorRegion, flops: float) -> Tensor:
        region.count(flops)
        return region.reduce(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


class _ShardedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, first: int, region: TensorRegion) -> Tensor:
        tokens, held = logits.shape
        largest = logits.new_full((tokens,), float("-inf"))
        if held:
            largest = logits.amax(dim=1)
        region.reduce(largest, Reduction.MAX)
        exponentials = (logits - largest[:, None]).exp()
        local = targets - first
        mine = (local >= 0) & (local < held)
        rows = mine.nonzero()[:, 0]
        columns = local[rows]
        sums = logits.new_zeros((2, tokens))
        sums[0] = exponentials.sum(dim=1)
        sums[1, rows] = logits[rows, columns] - largest[rows]
        region.reduce(sums)
        ctx.save_for_backward(exponentials, sums[0].clone(), rows, columns)
        loss: Tensor = (sums[0].log() - sums[1]).sum()
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        exponentials, totals, rows, columns = ctx.saved_tensors
        softmax = exponentials / totals[:, None]
        softmax[rows, columns] -= 1.0
        return softmax * gradient, None, None, None


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
    loss: Tensor = _ShardedCrossEntropy.apply(logits, targets, first, region)
    return loss
