"""What is kept of an iteration that a failure interrupted: which sums go where, and what must be run again.

A micro-batch counts for a stretch of a parameter when its gradient is in a sum that a survivor holds. Sums of different
replicas have different micro-batches, so they may be added up; equal copies (a tensor that every shard holds whole, or
a sum that is reduced already) count once. Every chosen sum goes to exactly one contributor of the new layout, so the
reduction over replicas adds each micro-batch once, whatever was cut, moved, lost or already salvaged before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from layouts.layout import Layout
from layouts.mix import Mix
from trainer_sdk.elastic.gradient_ledger import GradientLedger, PartialSum
from trainer_sdk.elastic.ownership import OwnershipMap
from trainer_sdk.elastic.parameters import ParameterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SumMove:
    """Add ``source``'s sum of ``[start, stop)`` to ``destination``'s, which may be the same rank."""

    name: str
    start: int
    stop: int
    source: int
    destination: int
    micro_batches: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """``[start, stop)`` of a parameter, and the micro-batches that nobody's sum has there."""

    start: int
    stop: int
    micro_batches: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagePlan:
    """How an interrupted iteration goes on; the same on every rank.

    Attributes:
        iteration: Iteration.
        moves: Every sum that is kept, with its new place; destinations start from zero.
        gaps: Of each parameter, stretches that cover all of it, ascending.
        again: Micro-batches that must be run again, ascending: some gap has them, or nobody knows their loss.
        kept: The others, ascending.
        losses: Loss of each kept micro-batch, summed over tokens.
        mix: Which documents the iteration's micro-batches have to the end, whatever the new layout says of later ones.
    """

    iteration: int
    moves: tuple[SumMove, ...]
    gaps: Mapping[str, tuple[Gap, ...]]
    again: tuple[int, ...]
    kept: tuple[int, ...]
    losses: Mapping[int, float]
    mix: Mix | None


def plan_salvage(
    specs: Sequence[ParameterSpec],
    ledgers: Mapping[int, GradientLedger],
    layout: Layout,
    *,
    iteration: int,
) -> SalvagePlan:
    """Keep as much as the survivors' sums allow.

    Args:
        specs: The model's parameters.
        ledgers: What each rank that may be read holds, all of the same epoch. Ledgers of another iteration count as
            empty.
        layout: Layout to go on under.
        iteration: Iteration that was interrupted.
    """
    everything = frozenset(range(layout.num_micro_batches))
    usable = {rank: ledgers[rank] for rank in sorted(ledgers) if ledgers[rank].iteration == iteration}
    offers: dict[str, list[tuple[int, PartialSum]]] = {spec.name: [] for spec in specs}
    for rank, ledger in usable.items():
        for each in ledger.sums:
            if each.micro_batches:
                offers[each.name].append((rank, each))
    ownership, chooser = OwnershipMap(specs, layout), _Chooser()
    gaps: dict[str, tuple[Gap, ...]] = {}
    for spec in specs:
        holdings = [held for held in ownership.holdings(spec.name) if len(held.slice)]
        borders = {border for held in holdings for border in (held.slice.start, held.slice.stop)}
        borders |= {border for _, each in offers[spec.name] for border in (each.start, each.stop)}
        found = []
        for start, stop in pairwise(sorted(borders)):
            here = [(rank, each) for rank, each in offers[spec.name] if each.start <= start and stop <= each.stop]
            contributors = [
                held.rank
                for held in holdings
                if held.contributes and held.slice.start <= start and stop <= held.slice.stop
            ]
            done = chooser.choose(spec, start, stop, here, contributors)
            found.append(Gap(start=start, stop=stop, micro_batches=everything - done))
        gaps[spec.name] = tuple(found)
    losses = _known_losses(usable.values())
    again = everything - losses.keys()
    again = again.union(*(gap.micro_batches for found in gaps.values() for gap in found))
    kept = tuple(sorted(everything - again))
    return SalvagePlan(
        iteration=iteration,
        moves=tuple(chooser.moves),
        gaps=gaps,
        again=tuple(sorted(again)),
        kept=kept,
        losses={index: losses[index] for index in kept},
        mix=next((ledger.mix for ledger in usable.values()), layout.mix),
    )


class _Chooser:
    """Chooses sums stretch by stretch, and spreads what has to be copied."""

    def __init__(self) -> None:
        self.moves: list[SumMove] = []
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def choose(
        self,
        spec: ParameterSpec,
        start: int,
        stop: int,
        offers: Iterable[tuple[int, PartialSum]],
        contributors: Sequence[int],
    ) -> frozenset[int]:
        """Place the largest sums that have no micro-batch in common; returns their micro-batches."""

        def preference(offer: tuple[int, PartialSum]) -> tuple[int, bool, int, int]:
            rank, each = offer
            return -len(each.micro_batches), rank not in contributors, self._sent.get(rank, 0), rank

        done: frozenset[int] = frozenset()
        elements = (stop - start) * spec.row_elements
        for rank, each in sorted(offers, key=preference):
            if not done.isdisjoint(each.micro_batches):
                continue
            destination = rank
            if rank not in contributors:
                destination = min(contributors, key=lambda other: (self._received.get(other, 0), other))
                self._sent[rank] = self._sent.get(rank, 0) + elements
                self._received[destination] = self._received.get(destination, 0) + elements
            self.moves.append(
                SumMove(
                    name=spec.name,
                    start=start,
                    stop=stop,
                    source=rank,
                    destination=destination,
                    micro_batches=each.micro_batches,
                )
            )
            done |= each.micro_batches
        return done


def _known_losses(ledgers: Iterable[GradientLedger]) -> dict[int, float]:
    losses: dict[int, float] = {}
    for ledger in ledgers:
        for index, loss in ledger.losses.items():
            losses.setdefault(index, loss)
    return losses
