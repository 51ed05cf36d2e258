"""Carries out a salvage plan: one exchange moves what is kept."""

from collections.abc import Sequence

import torch
from torch import Tensor

from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan, SumMove
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.groups.delivery import Delivery


def move_sums(
    specs: Sequence[ParameterSpec],
    plan: SalvagePlan,
    source: GradientSums | None,
    target: GradientSums | None,
    delivery: Delivery,
    device: torch.device,
) -> None:
    """Fill ``target``, which was resumed for the plan's iteration, with the sums that are kept.

    Args:
        specs: The model's parameters.
        plan: This rank's.
        source: This rank's sums of the old epoch, untouched; None when nothing of them is read.
        target: Its sums of the new epoch; None for a rank that leaves.
        delivery: Takes sums to other ranks.
        device: Where sums live.

    Raises:
        WaitBroken: The rank should park.
    """
    row_elements = {spec.name: spec.row_elements for spec in specs}

    def size(move: SumMove) -> int:
        return (move.stop - move.start) * row_elements[move.name]

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
        delivery.carry_out(remote, size=size, read=read, write=write, like=like)
