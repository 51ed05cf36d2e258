"""What is kept of an iteration that a failure interrupted: which sums go where, and what must be run again.

A micro-batch counts for a stretch of a parameter when its gradient is in a sum that a survivor holds. Sums of different
replicas have different micro-batches, so they may be added up; equal copies (a tensor that every shard holds whole, or
a sum that is reduced already) count once. Every chosen sum goes to exactly one contributor of the new layout, so the
reduction over replicas adds each micro-batch once, whatever was cut, moved, lost or already salvaged before.

Every rank decides for all, as all must decide alike; but what is the same for many parameters is decided once
(:mod:`evenkeel.trainer_sdk.elastic.gradients.offers`), and a rank notes only the moves that it takes part in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger, Tally
from evenkeel.trainer_sdk.elastic.gradients.offers import Choice, Gap, Kept, Pool
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap


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
class SalvagePlan:
    """How an interrupted iteration goes on; but for the moves the same on every rank.

    Attributes:
        iteration: Iteration.
        moves: Sums that are kept and that this rank has or gets, with their new place, in an order that both ends of
            a move have in common; destinations start from zero.
        keeps_any: Whether anybody's sum is kept.
        num_moved: How many sums go to another rank, of all ranks.
        gaps: Of each parameter, stretches that cover all of it, ascending.
        again: Micro-batches that must be run again, ascending: some gap has them, or nobody knows their loss.
        kept: The others, ascending.
        losses: Loss of each kept micro-batch, summed over tokens.
        mix: Which documents the iteration's micro-batches have to the end, whatever the new layout says of later ones.
    """

    iteration: int
    moves: tuple[SumMove, ...]
    keeps_any: bool
    num_moved: int
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
    rank: int,
) -> SalvagePlan:
    """Keep as much as the survivors' sums allow.

    Args:
        specs: The model's parameters.
        ledgers: What each rank that may be read holds, all of the same epoch. Ledgers of another iteration count as
            empty.
        layout: Layout to go on under.
        iteration: Iteration that was interrupted.
        rank: Whose moves are wanted.
    """
    everything = frozenset(range(layout.num_micro_batches))
    usable = {each: ledgers[each] for each in sorted(ledgers) if ledgers[each].tally.iteration == iteration}
    ownership, pool = OwnershipMap(specs, layout), Pool(usable, layout, rank)
    places = _Places(rank, 1 + max((*ledgers, *layout.ranks)))
    gaps = {spec.name: places.find(spec, pool.choices_of(spec.name, ownership.stretches(spec.name))) for spec in specs}
    tallies = {id(ledger.tally): ledger.tally for ledger in usable.values()}.values()
    losses = _known_losses(tallies)
    again = everything - losses.keys()
    lacking = {id(gap.micro_batches): gap.micro_batches for found in gaps.values() for gap in found}
    again = again.union(*lacking.values())
    kept = tuple(sorted(everything - again))
    return SalvagePlan(
        iteration=iteration,
        moves=tuple(places.moves),
        keeps_any=places.keeps_any,
        num_moved=places.num_moved,
        gaps=gaps,
        again=tuple(sorted(again)),
        kept=kept,
        losses={index: losses[index] for index in kept},
        mix=next((tally.mix for tally in tallies), layout.mix),
    )


class _Places:
    """Finds each sum that is kept its place, and spreads what has to be copied over those who get it.

    Args:
        rank: Whose moves are noted.
        num_ranks: One more than the highest rank.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.moves: list[SumMove] = []
        self.keeps_any = False
        self.num_moved = 0
        self._rank = rank
        self._received = np.zeros(num_ranks, dtype=np.int64)

    def find(self, spec: ParameterSpec, choices: Sequence[Choice]) -> tuple[Gap, ...]:
        """Place what is kept of a parameter, stretch by stretch; returns what is lacking."""
        for choice in choices:
            self.keeps_any |= choice.keeps_any
            for kept in choice.noted:
                self._place(spec, choice, kept)
        return tuple([choice.gap for choice in choices])

    def _place(self, spec: ParameterSpec, choice: Choice, kept: Kept) -> None:
        start, stop, destination = choice.gap.start, choice.gap.stop, kept.source
        if not kept.stays:
            destination = int(choice.contributors[self._received[choice.contributors].argmin()])
            self._received[destination] += (stop - start) * spec.row_elements
            self.num_moved += 1
        if self._rank in (kept.source, destination):
            self.moves.append(
                SumMove(
                    name=spec.name,
                    start=start,
                    stop=stop,
                    source=kept.source,
                    destination=destination,
                    micro_batches=kept.micro_batches,
                )
            )


def _known_losses(tallies: Iterable[Tally]) -> dict[int, float]:
    losses: dict[int, float] = {}
    for tally in tallies:
        for index, loss in tally.losses.items():
            losses.setdefault(index, loss)
    return losses
