"""Whose sums of an interrupted iteration may be kept, and which of them are: decided once for what is the same.

Thousands of ranks hold hundreds of parameters in a few ways, and have done what their replica has. Choices for equal
parameters are one object; who offers a sum is an array, and sets of micro-batches are numbered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger
from evenkeel.trainer_sdk.elastic.state.ownership import Stretch

Numbers = NDArray[np.int64]
_Entry = tuple[int, int, int, int]
"""Start and stop of a summed stretch, whose ledgers have it (the id of their stretches), and which of their sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """``[start, stop)`` of a parameter, and the micro-batches that nobody's sum has there."""

    start: int
    stop: int
    micro_batches: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A rank's sum that is kept, and whether it may stay with that rank."""

    source: int
    micro_batches: frozenset[int]
    stays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The sums of a stretch that are kept: the largest that have no micro-batch in common.

    Of those as large it is who may keep it, then the lower rank.

    Attributes:
        gap: What they leave.
        contributors: Who speaks for the stretch in the new layout, ascending.
        noted: Of the sums those that cannot stay, and the own rank's, in the order in which they were chosen.
    """

    gap: Gap
    contributors: Numbers
    noted: tuple[Kept, ...]


class Pool:
    """All that is offered.

    Args:
        ledgers: Of the interrupted iteration, by rank. Those with the same object as stretches, or as tally, are
            looked at together.
        layout: Layout to go on under.
        rank: The rank whose own sums are noted.
    """

    def __init__(self, ledgers: Mapping[int, GradientLedger], layout: Layout, rank: int) -> None:
        self._rank = rank
        self._everything = frozenset(range(layout.num_micro_batches))
        self._picked: dict[bytes, tuple[list[int], frozenset[int]]] = {}
        self._lacking: dict[bytes, frozenset[int]] = {}
        self._choices: dict[tuple[object, ...], tuple[Choice, ...]] = {}
        number: dict[frozenset[int], int] = {}
        numbers: dict[int, list[int]] = {}
        alike: dict[int, tuple[list[int], list[list[int]]]] = {}
        for each, (stretches, tally) in ledgers.items():
            shape = id(stretches)
            if id(tally) not in numbers:
                numbers[id(tally)] = [number.setdefault(one, len(number)) for one in tally.sets]
            ranks, sets = alike.setdefault(shape, ([], []))
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

    def choices_of(self, name: str, stretches: Sequence[Stretch]) -> tuple[Choice, ...]:
        """What is kept of a parameter, stretch by stretch; the same object for what is offered and held alike.

        Args:
            name: The parameter.
            stretches: Who holds it in the layout to go on under.
        """
        entries = self._entries.get(name, [])
        key = (id(stretches), *entries)
        if key not in self._choices:
            borders = {border for start, stop, *_ in (*entries, *stretches) for border in (start, stop)}
            self._choices[key] = tuple(
                [self._choose(start, stop, entries, stretches) for start, stop in pairwise(sorted(borders))]
            )
        return self._choices[key]

    def _choose(self, start: int, stop: int, entries: Sequence[_Entry], stretches: Sequence[Stretch]) -> Choice:
        """What is kept of a stretch that no border of an offer or of the new layout cuts."""
        ranks, numbers = self._offered(start, stop, entries)
        here = next(each for each in stretches if each.start <= start and stop <= each.stop)
        contributors = _array(sorted(here.contributors))
        moves = ~np.isin(ranks, contributors)
        order = np.lexsort((ranks, moves, -self._sizes[numbers]))
        places, gap = self._pick(numbers[order])
        chosen = order[places]
        noted = chosen[moves[chosen] | (ranks[chosen] == self._rank)]
        return Choice(
            gap=Gap(start=start, stop=stop, micro_batches=gap),
            contributors=contributors,
            noted=tuple(
                [
                    Kept(source=int(ranks[one]), micro_batches=self._sets[numbers[one]], stays=not moves[one])
                    for one in noted
                ]
            ),
        )

    def _offered(self, start: int, stop: int, entries: Sequence[_Entry]) -> tuple[Numbers, Numbers]:
        """Who offers a sum of a stretch, each once, and the number of each one's set of micro-batches."""
        ranks, numbers = [_array([])], [_array([])]
        for entry_start, entry_stop, shape, which in entries:
            if entry_start <= start and stop <= entry_stop:
                alike, sets = self._alike[shape]
                has_any = self._sizes[sets[:, which]] > 0
                ranks.append(alike[has_any])
                numbers.append(sets[has_any, which])
        return np.concatenate(ranks), np.concatenate(numbers)

    def _pick(self, numbers: Numbers) -> tuple[list[int], frozenset[int]]:
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


def _array(numbers: Sequence[int]) -> Numbers:
    return np.array(numbers, dtype=np.int64)
