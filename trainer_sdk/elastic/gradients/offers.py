"""Whose sums of an interrupted iteration may be kept, and which of them are: decided once for what is the same.

Thousands of ranks hold hundreds of parameters in a few ways, and have done what their replica has. Offers of equal
parameters are one object; their ranks are arrays, and sets of micro-batches are numbered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    """The sums of a stretch that are kept.

    Attributes:
        gap: What they leave.
        keeps_any: Whether there are any.
        noted: Of them those that cannot stay, and the own rank's, in the order in which they were chosen.
    """

    gap: Gap
    keeps_any: bool
    noted: tuple[Kept, ...]


class Offers:
    """What is offered of a stretch that no border of an offer or of the new layout cuts.

    Args:
        start: First unit of the cut axis.
        stop: One past the last.
        ranks: Who offers a sum, each once.
        numbers: The number of each one's set of micro-batches.
        contributors: Who speaks for the stretch in the new layout.
        pool: Knows the sets.

    Attributes:
        contributors: Ascending.
        ranks: Who offers.
    """

    def __init__(
        self, start: int, stop: int, ranks: Numbers, numbers: Numbers, contributors: Numbers, pool: "Pool"
    ) -> None:
        self.start = start
        self.stop = stop
        self.contributors = contributors
        self._pool = pool
        moves = ~np.isin(ranks, contributors)
        sizes = pool.sizes[numbers]
        order = np.lexsort((ranks, moves, -sizes))
        self._ranks, self._numbers, self._moves = ranks[order], numbers[order], moves[order]
        self._rivals = np.stack((-sizes[order], self._moves))
        self.ranks = frozenset(ranks.tolist())

    @cached_property
    def first_choice(self) -> Choice:
        """What is chosen while none of the ranks has to send anything."""
        return self._choose(np.arange(len(self._ranks)))

    def choose(self, sent: Numbers) -> Choice:
        """Keep the largest sums that have no micro-batch in common.

        Of those as large it prefers who may keep it, then who has sent least, then the lower rank.

        Args:
            sent: Elements that each rank sends already.
        """
        return self._choose(np.lexsort((sent[self._ranks], *self._rivals[::-1])))

    def _choose(self, order: Numbers) -> Choice:
        numbers = self._numbers[order]
        places, gap = self._pool.pick(numbers)
        chosen = order[places]
        noted = chosen[self._moves[chosen] | (self._ranks[chosen] == self._pool.rank)]
        return Choice(
            gap=Gap(start=self.start, stop=self.stop, micro_batches=gap),
            keeps_any=bool(places),
            noted=tuple(
                [
                    Kept(source=source, micro_batches=self._pool.sets[number], stays=not moves)
                    for source, number, moves in zip(
                        self._ranks[noted].tolist(),
                        self._numbers[noted].tolist(),
                        self._moves[noted].tolist(),
                        strict=True,
                    )
                ]
            ),
        )


class Pool:
    """All that is offered.

    Args:
        ledgers: Of the interrupted iteration, by rank. Those with the same object as stretches, or as tally, are
            looked at together.
        layout: Layout to go on under.
        rank: The rank whose own sums are noted.

    Attributes:
        rank: Likewise.
        sets: All sets of micro-batches that are summed somewhere; their place is their number.
        sizes: How many micro-batches each has.
    """

    def __init__(self, ledgers: Mapping[int, GradientLedger], layout: Layout, rank: int) -> None:
        self.rank = rank
        self._everything = frozenset(range(layout.num_micro_batches))
        self._picked: dict[bytes, tuple[list[int], frozenset[int]]] = {}
        self._lacking: dict[bytes, frozenset[int]] = {}
        self._offers: dict[tuple[object, ...], tuple[Offers, ...]] = {}
        self._speakers: dict[int, Numbers] = {}
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
        self.sets = tuple(number)
        self.sizes = _array([len(one) for one in self.sets])
        self._alike = {shape: (_array(ranks), np.array(sets, dtype=np.int64)) for shape, (ranks, sets) in alike.items()}
        self._entries: dict[str, list[_Entry]] = {}
        for shape, stretches in {id(stretches): stretches for stretches, _ in ledgers.values()}.items():
            most = self.sizes[self._alike[shape][1]].max(axis=0)
            for name, start, stop, which in stretches:
                if most[which]:
                    self._entries.setdefault(name, []).append((start, stop, shape, which))

    def offers_of(self, name: str, stretches: Sequence[Stretch]) -> tuple[Offers, ...]:
        """What is offered of a parameter, stretch by stretch; the same object for what is offered and held alike.

        Args:
            name: The parameter.
            stretches: Who holds it in the layout to go on under.
        """
        entries = self._entries.get(name, [])
        key = (id(stretches), *entries)
        if key not in self._offers:
            borders = {border for start, stop, *_ in (*entries, *stretches) for border in (start, stop)}
            self._offers[key] = tuple(
                [self._between(start, stop, entries, stretches) for start, stop in pairwise(sorted(borders))]
            )
        return self._offers[key]

    def pick(self, numbers: Numbers) -> tuple[list[int], frozenset[int]]:
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
                micro_batches = self.sets[numbers[place]]
                if done.isdisjoint(micro_batches):
                    places.append(place)
                    done |= micro_batches
            # Many rows come to the same: whoever looks for what all lack looks at each lack once.
            taken = np.sort(numbers[places]).tobytes()
            if taken not in self._lacking:
                self._lacking[taken] = self._everything - done
            self._picked[key] = places, self._lacking[taken]
        return self._picked[key]

    def _between(self, start: int, stop: int, entries: Sequence[_Entry], stretches: Sequence[Stretch]) -> Offers:
        ranks, numbers = [_array([])], [_array([])]
        for entry_start, entry_stop, shape, which in entries:
            if entry_start <= start and stop <= entry_stop:
                alike, sets = self._alike[shape]
                has_any = self.sizes[sets[:, which]] > 0
                ranks.append(alike[has_any])
                numbers.append(sets[has_any, which])
        here = next(each for each in stretches if each.start <= start and stop <= each.stop)
        if id(here) not in self._speakers:
            self._speakers[id(here)] = _array(sorted(here.contributors))
        return Offers(start, stop, np.concatenate(ranks), np.concatenate(numbers), self._speakers[id(here)], self)


def _array(numbers: Sequence[int]) -> Numbers:
    return np.array(numbers, dtype=np.int64)
