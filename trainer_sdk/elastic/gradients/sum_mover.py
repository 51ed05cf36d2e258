"""Carries out a salvage plan: the ranks tell one another what they hold, and one exchange moves what is kept."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import torch

from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger, ledger_to_texts, ledgers_from_texts
from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.groups.building.assembly import Assembly
from evenkeel.trainer_sdk.groups.delivery import Delivery


def gather_ledgers(assembly: Assembly, mine: GradientLedger, names: Sequence[str]) -> dict[int, GradientLedger]:
    """Everybody's ledger, by rank; the same on every rank.

    Args:
        assembly: All participants of the transition.
        mine: This rank's.
        names: All parameters of the model, in order.

    Raises:
        Interrupted: The rank should park.
        PeerLost: A participant is gone.
    """
    return ledgers_from_texts(assembly.gather(ledger_to_texts(mine, names)), names)


def move_sums(
    specs: Sequence[ParameterSpec],
    plan: SalvagePlan,
    source: GradientSums | None,
    target: GradientSums | None,
    rank: int,
    delivery: Delivery,
    device: torch.device,
) -> None:
    """Fill ``target``, which was resumed for the plan's iteration, with the sums that are kept.

    Args:
        specs: The model's parameters.
        plan: This rank's.
        source: This rank's sums of the old epoch, untouched; None when nothing of them is read.
        target: Its sums of the new epoch; None for a rank that leaves.
        rank: This rank.
        delivery: Takes sums to other ranks.
        device: Where sums live.

    Raises:
        Interrupted: The rank should park.
        PeerLost: A participant is gone.
    """
    for move in plan.moves:
        if move.source == move.destination == rank:
            assert source is not None, f"rank {rank} keeps a sum in place and has none"
            assert target is not None, f"rank {rank} leaves and cannot be a destination"
            target.add(
                move.name, move.start, move.stop, source.read(move.name, move.start, move.stop), move.micro_batches
            )
    if not plan.num_moved:
        return
    remote = [move for move in plan.moves if move.source != move.destination]
    row_elements = {spec.name: spec.row_elements for spec in specs}
    outgoing: dict[int, list[torch.Tensor]] = defaultdict(list)
    expected: Counter[int] = Counter()
    for move in remote:
        if move.source == rank:
            assert source is not None, f"rank {rank} is a source of {move.name} and has no sums"
            outgoing[move.destination].append(source.read(move.name, move.start, move.stop).reshape(-1))
        if move.destination == rank:
            expected[move.source] += (move.stop - move.start) * row_elements[move.name]
    arrived = delivery.exchange(outgoing, expected, torch.empty(0, dtype=torch.float64, device=device))
    start: Counter[int] = Counter()
    for move in remote:
        if move.destination == rank:
            assert target is not None, f"rank {rank} leaves and cannot be a destination"
            first = start[move.source]
            start[move.source] += (move.stop - move.start) * row_elements[move.name]
            piece = arrived[move.source][first : start[move.source]]
            target.add(move.name, move.start, move.stop, piece, move.micro_batches)
