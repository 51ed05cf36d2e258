"""What is kept of an iteration that a failure interrupted: which sums stay, and what must be run again.

A micro-batch counts for a stretch of a parameter when its gradient is in a sum that is kept there. A sum stays with the
rank that has it, where that rank speaks for the stretch in the new layout too; else it is let go of. So a replica that
is cut anew runs what it had finished again, which costs an iteration at most and spares each recovery an exchange. Sums
of different replicas have different micro-batches, so they may be added up; a reduced sum has all, so one of them
counts. So the reduction over replicas adds each micro-batch once, whatever was cut, lost or already salvaged before.

Every rank decides for all, as all must decide alike. Thousands of ranks hold hundreds of parameters in a few ways, and
have done what their replica has: gaps for equal parameters are one object, who offers a sum is an array, and sets of
micro-batches are numbered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Stretch

_Numbers = NDArray[np.int64]
_Entry = tuple[int, int, int, int]
"""Start and stop of a summed stretch, whose ledgers have it (the id of their stretches), and which of their sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """``[start, stop)`` of a parameter.

    Attributes:
        start: First unit of the cut axis.
        stop: One past the last.
        micro_batches: Those that are in no sum that is kept; the same on every rank.
        stays: Those that are in the own rank's sum, if it is kept.
    """

    start: int
    stop: int
    micro_batches: frozenset[int]
    stays: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagePlan:
    """How an interrupted iteration goes on; but for what stays with a rank the same on every rank.

    Attributes:
        iteration: Iteration.
        gaps: Of each parameter, stretches that cover all of it, ascending.
        keeps_any: Whether anybody's sum is kept.
        again: Micro-batches that must be run again, ascending: some gap has them, or nobody knows their loss.
        losses: Loss of each of the others, ascending, summed over tokens.
        mix: Which documents the iteration's micro-batches have to the end, whatever the new layout says of later ones.
    """

    iteration: int
    gaps: Mapping[str, tuple[Gap, ...]]
    keeps_any: bool
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
        ledgers: What each rank that goes on holds, all of the same epoch. Ledgers of another iteration count as empty.
            Those with the same object as stretches, or as tally, are looked at together.
        layout: Layout to go on under.
        iteration: Iteration that was interrupted.
        rank: Who wants to know what stays with it.
    """
    everything = frozenset(range(layout.num_micro_batches))
    usable = {each: ledgers[each] for each in sorted(ledgers) if ledgers[each].tally.iteration == iteration}
    ownership, offers = OwnershipMap(specs, layout), _Offers(usable, everything, rank)
    gaps = {spec.name: offers.gaps_of(spec.name, ownership.stretches(spec.name)) for spec in specs}
    tallies = {id(ledger.tally): ledger.tally for ledger in usable.values()}.values()
    losses: dict[int, float] = {}
    for index, loss in (known for tally in tallies for known in tally.losses.items()):
        losses.setdefault(index, loss)
    lacking = {id(gap.micro_batches): gap.micro_batches for found in gaps.values() for gap in found}.values()
    again = (everything - losses.keys()).union(*lacking)
    return SalvagePlan(
        iteration=iteration,
        gaps=gaps,
        keeps_any=any(one != everything for one in lacking),
        again=tuple(sorted(again)),
        losses={index: losses[index] for index in sorted(everything - again)},
        mix=next((tally.mix for tally in tallies), layout.mix),
    )


class _Offers:
    """The sums of all ranks, and what is kept of them: what is the same is decided once."""

    def __init__(self, ledgers: Mapping[int, GradientLedger], everything: frozenset[int], rank: int) -> None:
        self._rank = rank
        self._everything = everything
        self._picked: dict[bytes, tuple[list[int], frozenset[int]]] = {}
        self._lacking: dict[bytes, frozenset[int]] = {}
        self._gaps: dict[tuple[object, ...], tuple[Gap, ...]] = {}
        number: dict[frozenset[int], int] = {}
        numbers: dict[int, list[int]] = {}
        alike: dict[int, tuple[list[int], list[list[int]]]] = {}
        for each, (stretches, tally) in ledgers.items():
            if id(tally) not in numbers:
                numbers[id(tally)] = [number.setdefault(one, len(number)) for one in tally.sets]
            ranks, sets = alike.setdefault(id(stretches), ([], []))
            ranks.append(each)
            sets.append(numbers[id(tally)])
        self._sets = tuple(number)  # a set's number is its place
        self._sizes = _array([len(one) for one in self._sets])
        self._alike = {shape: (_array(ranks), np.array(sets, dtype=np.int64)) for shape, (ranks, sets) in alike.items()}
        self._entries: dict[str, list[_Entry]] = {}
        for shape, stretches in {id(stretches): stretches for stretches, _ in ledgers.values()}.items():
            most = self._sizes[self._alike[shape][1]].max(axis=0)
            for name, start, stop, which in stretches:
                if most[which]:
                    self._entries.setdefault(name, []).append((start, stop, shape, which))

    def gaps_of(self, name: str, stretches: Sequence[Stretch]) -> tuple[Gap, ...]:
        """A parameter stretch by stretch; the same object for what is offered and held alike.

        Args:
            name: The parameter.
            stretches: Who holds it in the layout to go on under.
        """
        entries = self._entries.get(name, [])
        key = (id(stretches), *entries)
        if key not in self._gaps:
            borders = {border for start, stop, *_ in (*entries, *stretches) for border in (start, stop)}
            self._gaps[key] = tuple(
                [self._gap(start, stop, entries, stretches) for start, stop in pairwise(sorted(borders))]
            )
        return self._gaps[key]

    def _gap(self, start: int, stop: int, entries: Sequence[_Entry], stretches: Sequence[Stretch]) -> Gap:
        """A stretch that no border of an offer or of the new layout cuts.

        Kept are the largest sums that have no micro-batch in common; of those as large, the lower rank's.
        """
        ranks, numbers = self._offered(start, stop, entries)
        here = next(each for each in stretches if each.start <= start and stop <= each.stop)
        able = np.isin(ranks, _array(sorted(here.contributors)))
        ranks, numbers = ranks[able], numbers[able]
        order = np.lexsort((ranks, -self._sizes[numbers]))
        places, lacking = self._pick(numbers[order])
        own = [numbers[each] for each in order[places] if ranks[each] == self._rank]
        stays = self._sets[own[0]] if own else frozenset()
        return Gap(start=start, stop=stop, micro_batches=lacking, stays=stays)

    def _offered(self, start: int, stop: int, entries: Sequence[_Entry]) -> tuple[_Numbers, _Numbers]:
        """Who has a sum of a stretch, each once, and the number of each one's set of micro-batches."""
        ranks, numbers = [_array([])], [_array([])]
        for entry_start, entry_stop, shape, which in entries:
            if entry_start <= start and stop <= entry_stop:
                alike, sets = self._alike[shape]
                has_any = self._sizes[sets[:, which]] > 0
                ranks.append(alike[has_any])
                numbers.append(sets[has_any, which])
        return np.concatenate(ranks), np.concatenate(numbers)

    def _pick(self, numbers: _Numbers) -> tuple[list[int], frozenset[int]]:
        """Of a row of sets, those that have nothing in common with the ones taken before.

        Args:
            numbers: The sets, in order of preference.

        Returns:
            Their places in the row, and the micro-batches that none of them has.
        """
        key = numbers.tobytes()
        if key not in self._picked:
            places, done = [], set[int]()
            # Where a set comes again, it has something in common with itself, or with what kept it out.
            for place in sorted(np.unique(numbers, return_index=True)[1].tolist()):
                micro_batches = self._sets[numbers[place]]
                if done.isdisjoint(micro_batches):
                    places.append(place)
                    done |= micro_batches
            # Many rows come to the same: whoever looks for what all lack looks at each lack once.
            taken = np.sort(numbers[places]).tobytes()
            if taken not in self._lacking:
                self._lacking[taken] = self._everything - done
            self._picked[key] = places, self._lacking[taken]
        return self._picked[key]


def _array(numbers: Sequence[int]) -> _Numbers:
    return np.array(numbers, dtype=np.int64)
