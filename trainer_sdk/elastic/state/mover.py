"""Carries out what was planned: slices of the state, and sums of an interrupted iteration, go where they are wanted.

Each is one exchange of all participants, who have the same plan.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan, SumMove
from evenkeel.trainer_sdk.elastic.state.shard_state import TENSORS_PER_PARAMETER, ShardState
from evenkeel.trainer_sdk.elastic.state.transfers import Copy
from evenkeel.trainer_sdk.groups.delivery import Delivery


def move_state(
    copies: Sequence[Copy],
    source: ShardState | None,
    target: ShardState,
    delivery: Delivery,
    kept: Mapping[int, ShardState],
) -> None:
    """Fill ``target`` from the local slices of ``source`` and from what the other ranks send.

    Args:
        copies: All copies of the reshape, in the same order on every rank.
        source: What this rank holds of the old epoch; None for a joiner.
        target: What it will hold of the new one; without parameters for a rank that leaves.
        delivery: Takes slices to other ranks.
        kept: What this rank keeps of ranks that are gone, for copies that name them.

    Raises:
        WaitBroken: The rank should park; ``source`` is untouched.
    """
    if source is not None:
        for name in source.held.keys() & target.held.keys():
            wanted = target.held[name]
            if stays := source.held[name].within(wanted.start, wanted.stop):
                _fill(target, name, stays.start, stays.stop, source.views(name, stays.start, stays.stop))
    if not copies:
        return

    def read(copy: Copy) -> list[Tensor]:
        given = source if copy.copy_of is None else kept.get(copy.copy_of)
        assert given is not None, f"this rank is the source of {copy} and holds nothing"
        return given.views(copy.name, copy.start, copy.stop)

    def write(copy: Copy, arrived: Tensor) -> None:
        _fill(target, copy.name, copy.start, copy.stop, arrived.chunk(TENSORS_PER_PARAMETER))

    delivery.carry_out(copies, read=read, write=write, num_tensors=TENSORS_PER_PARAMETER, like=target.buffer)


def move_sums(
    plan: SalvagePlan,
    source: GradientSums | None,
    target: GradientSums | None,
    delivery: Delivery,
    device: torch.device,
) -> None:
    """Fill ``target``, which was resumed for the plan's iteration, with the sums that are kept.

    Args:
        plan: This rank's.
        source: This rank's sums of the old epoch, untouched; None when nothing of them is read.
        target: Its sums of the new epoch; None for a rank that leaves.
        delivery: Takes sums to other ranks.
        device: Where sums live.

    Raises:
        WaitBroken: The rank should park.
    """

    def read(move: SumMove) -> list[Tensor]:
        assert source is not None, f"a rank is the source of {move} and has no sums"
        return [source.read(move.name, move.start, move.stop)]

    def write(move: SumMove, kept: Tensor) -> None:
        assert target is not None, f"a rank leaves and cannot be the destination of {move}"
        target.add(move.name, move.start, move.stop, kept, move.micro_batches)

    for move in plan.moves:
        if move.source == move.destination:
            write(move, *read(move))
    if plan.num_moved:
        remote = [move for move in plan.moves if move.source != move.destination]
        like = torch.empty(0, dtype=torch.float64, device=device)
        delivery.carry_out(remote, read=read, write=write, num_tensors=1, like=like)


def _fill(target: ShardState, name: str, start: int, stop: int, tensors: Iterable[Tensor]) -> None:
    for view, given in zip(target.views(name, start, stop), tensors, strict=True):
        view.copy_(given.view_as(view))
