"""What is kept of an iteration that a failure interrupted: which sums go where, and what must be run again.

A micro-batch counts for a stretch of a parameter when its gradient is in a sum that a survivor holds. Sums of different
replicas have different micro-batches, so they may be added up; equal copies (a tensor that every shard holds whole, or
a sum that is reduced already) count once. Every chosen sum goes to exactly one contributor of the new layout, so the
reduction over replicas adds each micro-batch once, whatever was cut, moved, lost or already salvaged before.

Every rank decides for all, as all must decide alike; but what is the same for many parameters is decided once, and a
rank notes only the moves that it takes part in.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Stretch
from evenkeel.trainer_sdk.groups.delivery import Move


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """``[start, stop)`` of a parameter, and the micro-batches that nobody's sum has there."""

    start: int
    stop: int
    micro_batches: frozenset[int]


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
    usable = {each: ledgers[each] for each in sorted(ledgers) if ledgers[each].tally.iteration == iteration}
    ownership, offers = OwnershipMap(specs, layout), _Offers(usable, layout, rank)
    received = Counter[int]()
    moves, num_moved = [], 0
    gaps: dict[str, tuple[Gap, ...]] = {}
    for spec in specs:
        choices = offers.choices_of(spec.name, ownership.stretches(spec.name))
        gaps[spec.name] = tuple([each.gap for each in choices])
        for gap, may_keep, (source, micro_batches) in [(*each[:2], kept) for each in choices for kept in each.noted]:
            destination, num_elements = source, (gap.stop - gap.start) * spec.row_elements
            if source not in may_keep:  # spread over those who may
                destination = min(sorted(may_keep), key=received.__getitem__)
                received[destination] += num_elements
                num_moved += 1
            if rank in (source, destination):
                moves.append(
                    SumMove(
                        name=spec.name,
                        start=gap.start,
                        stop=gap.stop,
                        num_elements=num_elements,
                        source=source,
                        destination=destination,
                        micro_batches=micro_batches,
                    )
                )
    tallies = {id(ledger.tally): ledger.tally for ledger in usable.values()}.values()
    losses: dict[int, float] = {}
    for index, loss in (known for tally in tallies for known in tally.losses.items()):
        losses.setdefault(index, loss)
    everything = offers.everything
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


_Offer = tuple[int, frozenset[int]]
"""Whose sum, and which micro-batches are in it."""

_Entry = tuple[int, int, int, int]
"""Start and stop of a summed stretch, whose ledgers have it (the id of their stretches), and which of their sets."""


class _Choice(NamedTuple):
    """The sums of a stretch that are kept: the largest that have no micro-batch in common.

    Of those as large it is who may keep it, then the lower rank.

    Attributes:
        gap: What they leave.
        may_keep: Who speaks for the stretch in the new layout.
        noted: Of the sums those that cannot stay, and the own rank's, in the order in which they were chosen.
    """

    gap: Gap
    may_keep: frozenset[int]
    noted: tuple[_Offer, ...]


class _Offers:
    """All sums that survivors hold; ``rank`` is the one whose own are noted.

    Thousands of ranks hold hundreds of parameters in a few ways, and have done what their replica has: ledgers with the
    same object as stretches are looked at together, and what is offered and held alike gives the same choices.
    """

    def __init__(self, ledgers: Mapping[int, GradientLedger], layout: Layout, rank: int) -> None:
        self.everything = frozenset(range(layout.num_micro_batches))
        self._rank = rank
        self._alike: dict[int, list[tuple[int, tuple[frozenset[int], ...]]]] = {}
        self._entries: dict[str, list[_Entry]] = {}
        self._choices: dict[tuple[object, ...], tuple[_Choice, ...]] = {}
        self._picked: dict[tuple[int, ...], tuple[list[int], frozenset[int]]] = {}
        for each, (stretches, tally) in ledgers.items():
            if id(stretches) not in self._alike:
                for name, start, stop, which in stretches:
                    self._entries.setdefault(name, []).append((start, stop, id(stretches), which))
            self._alike.setdefault(id(stretches), []).append((each, tally.sets))

    def choices_of(self, name: str, held: Sequence[Stretch]) -> tuple[_Choice, ...]:
        """What is kept of a parameter, cut where an offer or a holder in the new layout begins or ends."""
        entries = self._entries.get(name, [])
        key = (id(held), *entries)
        if key not in self._choices:
            borders = sorted({border for start, stop, *_ in (*entries, *held) for border in (start, stop)})
            self._choices[key] = tuple([self._choose(*cut, entries, held) for cut in pairwise(borders)])
        return self._choices[key]

    def _choose(self, start: int, stop: int, entries: Sequence[_Entry], held: Sequence[Stretch]) -> _Choice:
        """What is kept of a stretch that no border cuts."""
        offered = [
            (rank, sets[which])
            for entry_start, entry_stop, alike, which in entries
            if entry_start <= start and stop <= entry_stop
            for rank, sets in self._alike[alike]
        ]
        may_keep = next(one.contributors for one in held if one.start <= start and stop <= one.stop)
        offered.sort(key=itemgetter(0))
        offered.sort(key=lambda offer: (offer[0] not in may_keep) - 2 * len(offer[1]))
        places, gap = self._pick([micro_batches for _, micro_batches in offered])
        chosen = [offered[place] for place in places]
        noted = [offer for offer in chosen if offer[0] not in may_keep or offer[0] == self._rank]
        return _Choice(Gap(start=start, stop=stop, micro_batches=gap), may_keep, tuple(noted))

    def _pick(self, row: Sequence[frozenset[int]]) -> tuple[list[int], frozenset[int]]:
        """Of a row of sets, the places of those that have nothing in common with the ones before; and what all lack."""
        key = tuple(map(id, row))
        if key not in self._picked:
            places, done = [], set[int]()
            for place, micro_batches in enumerate(row):
                if micro_batches and done.isdisjoint(micro_batches):
                    places.append(place)
                    done |= micro_batches
            self._picked[key] = places, self.everything - done
        return self._picked[key]
