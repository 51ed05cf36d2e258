"""What is kept of an iteration that a failure interrupted: which sums go where, and what must be run again.

A micro-batch counts for a stretch of a parameter when its gradient is in a sum that a survivor holds. Sums of different
replicas have different micro-batches, so they may be added up; equal copies (a tensor that every shard holds whole, or
a sum that is reduced already) count once. Every chosen sum goes to exactly one contributor of the new layout, so the
reduction over replicas adds each micro-batch once, whatever was cut, moved, lost or already salvaged before.

Every rank decides for all, as all must decide alike; but what is the same for many parameters is decided once
(:mod:`evenkeel.trainer_sdk.elastic.gradients.offers`), and a rank notes only the moves that it takes part in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger
from evenkeel.trainer_sdk.elastic.gradients.offers import Gap, Pool
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.groups.delivery import Move


@dataclass(frozen=True, slots=True, kw_only=True)
class SumMove(Move):
    """The source's sum of a stretch, which is added to the destination's; they may be the same rank."""

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
        losses: Loss of each of the others, ascending, summed over tokens.
        mix: Which documents the iteration's micro-batches have to the end, whatever the new layout says of later ones.
    """

    iteration: int
    moves: tuple[SumMove, ...]
    keeps_any: bool
    num_moved: int
    gaps: Mapping[str, tuple[Gap, ...]]
    again: tuple[int, ...]
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
    received = np.zeros(1 + max((*ledgers, *layout.ranks)), dtype=np.int64)
    moves, num_moved = [], 0
    gaps: dict[str, tuple[Gap, ...]] = {}
    for spec in specs:
        choices = pool.choices_of(spec.name, ownership.stretches(spec.name))
        gaps[spec.name] = tuple([each.gap for each in choices])
        for choice, kept in [(each, kept) for each in choices for kept in each.noted]:
            start, stop, destination = choice.gap.start, choice.gap.stop, kept.source
            num_elements = (stop - start) * spec.row_elements
            if not kept.stays:  # spread over those who may have it
                destination = int(choice.contributors[received[choice.contributors].argmin()])
                received[destination] += num_elements
                num_moved += 1
            if rank in (kept.source, destination):
                moves.append(
                    SumMove(
                        name=spec.name,
                        start=start,
                        stop=stop,
                        num_elements=num_elements,
                        source=kept.source,
                        destination=destination,
                        micro_batches=kept.micro_batches,
                    )
                )
    tallies = {id(ledger.tally): ledger.tally for ledger in usable.values()}.values()
    losses: dict[int, float] = {}
    for index, loss in (known for tally in tallies for known in tally.losses.items()):
        losses.setdefault(index, loss)
    lacking = {id(gap.micro_batches): gap.micro_batches for found in gaps.values() for gap in found}.values()
    again = (everything - losses.keys()).union(*lacking)
    return SalvagePlan(
        iteration=iteration,
        moves=tuple(moves),
        keeps_any=any(one != everything for one in lacking),
        num_moved=num_moved,
        gaps=gaps,
        again=tuple(sorted(again)),
        losses={index: losses[index] for index in sorted(everything - again)},
        mix=next((tally.mix for tally in tallies), layout.mix),
    )
