"""Carries out a salvage plan: the ranks tell one another what they hold, and one all-to-all moves what is kept."""

import json
from collections.abc import Sequence

import torch

from trainer_sdk.elastic.gradient_ledger import GradientLedger, ledger_from_json, ledger_to_json
from trainer_sdk.elastic.gradient_sums import GradientSums
from trainer_sdk.elastic.parameters import ParameterSpec
from trainer_sdk.elastic.salvage import SalvagePlan
from trainer_sdk.groups.group import Group

_SIZE_BYTES = 8
_FIRST_BYTES = 4096
"""What everybody sends at once: the ledger of a rank with a few hundred parameters, so that one round is enough."""


def gather_ledgers(
    group: Group, mine: GradientLedger, names: Sequence[str], device: torch.device
) -> dict[int, GradientLedger]:
    """Everybody's ledger, by rank; the same on every rank.

    Args:
        group: All participants of the transition.
        mine: This rank's.
        names: All parameters of the model, in order.
        device: Where the group's tensors live.

    Raises:
        Interrupted: The rank should park.
        PeerLost: A participant is gone.
    """
    text = json.dumps(ledger_to_json(mine, names), separators=(",", ":")).encode()
    sized = len(text).to_bytes(_SIZE_BYTES, "little") + text
    texts = _gather_bytes(group, sized[:_FIRST_BYTES], _FIRST_BYTES, device)
    sizes = [_SIZE_BYTES + int.from_bytes(got[:_SIZE_BYTES], "little") for got in texts]
    if max(sizes) > _FIRST_BYTES:
        rests = _gather_bytes(group, sized[_FIRST_BYTES:], max(sizes) - _FIRST_BYTES, device)
        texts = [first + rest for first, rest in zip(texts, rests, strict=True)]
    return {
        rank: ledger_from_json(json.loads(got[_SIZE_BYTES:size]), names)
        for rank, got, size in zip(group.ranks, texts, sizes, strict=True)
    }


def _gather_bytes(group: Group, mine: bytes, length: int, device: torch.device) -> list[bytes]:
    """Everybody's bytes, padded to ``length``."""
    padded = bytearray(mine.ljust(length, b"\0"))
    return [
        row.numpy().tobytes() for row in group.all_gather(torch.frombuffer(padded, dtype=torch.uint8).to(device)).cpu()
    ]


def move_sums(
    specs: Sequence[ParameterSpec],
    plan: SalvagePlan,
    source: GradientSums | None,
    target: GradientSums | None,
    rank: int,
    group: Group,
    device: torch.device,
) -> None:
    """Fill ``target``, which was resumed for the plan's iteration, with the sums that are kept.

    Args:
        specs: The model's parameters.
        plan: The same on every rank.
        source: This rank's sums of the old epoch, untouched; None when nothing of them is read.
        target: Its sums of the new epoch; None for a rank that leaves.
        rank: This rank.
        group: All participants of the transition.
        device: Where the group's tensors live.

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
    remote = [move for move in plan.moves if move.source != move.destination]
    if not remote:
        return
    row_elements = {spec.name: spec.row_elements for spec in specs}
    outgoing = []
    sent, received = [0] * len(group.ranks), [0] * len(group.ranks)
    for move in sorted(remote, key=lambda move: move.destination):
        elements = (move.stop - move.start) * row_elements[move.name]
        if move.source == rank:
            assert source is not None, f"rank {rank} is a source of {move.name} and has no sums"
            outgoing.append(source.read(move.name, move.start, move.stop).reshape(-1))
            sent[group.ranks.index(move.destination)] += elements
        if move.destination == rank:
            received[group.ranks.index(move.source)] += elements
    packed = torch.cat(outgoing) if outgoing else torch.empty(0, dtype=torch.float64, device=device)
    incoming = group.all_to_all(packed, sent, received)
    start = 0
    for move in sorted(remote, key=lambda move: move.source):
        if move.destination == rank:
            assert target is not None, f"rank {rank} leaves and cannot be a destination"
            elements = (move.stop - move.start) * row_elements[move.name]
            target.add(move.name, move.start, move.stop, incoming[start : start + elements], move.micro_batches)
            start += elements
