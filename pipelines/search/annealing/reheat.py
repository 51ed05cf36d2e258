"""Anneals the best plans of a search: first as they stand, then from molten ones, then over and over from the best.

Where a slow cooling of a molten plan ends is chance, so several are made; short reheats from the best few of them in
turn then get further than one more. Where the last layer is heavy, what stands beside it is chosen first and keeps its
work, so that a cooling ends where the other devices have most room. What a cooling ends with has its order bettered by
swaps, which reach orders that no pass makes.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from evenkeel.pipelines.search.annealing.anneal import Dealt, Terms, anneal, standing_deal, within
from evenkeel.pipelines.search.annealing.express import Judge, express_pass
from evenkeel.pipelines.search.annealing.lines import by_layer, rows_of
from evenkeel.pipelines.search.annealing.soft_maximum import soft_end
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.climbing.climb import Standing, standing_of
from evenkeel.pipelines.search.climbing.improve import Ordering
from evenkeel.pipelines.search.climbing.reorder import SWAPS_A_SCHEDULE, reorder
from evenkeel.pipelines.search.starts.balance import window_loads
from evenkeel.pipelines.search.starts.deals import Deal, deal_of, layers_of, stages_dealt
from evenkeel.pipelines.search.starts.head_sets import head_sets, with_set
from evenkeel.pipelines.search.tables import Ints, Table, stages_of

# Temperatures, of the makespan: of a molten plan, of reheats, and where both end.
_MOLTEN, _REHEATS, _COLD = (0.0034, 0.0004), (0.0003, 0.0004, 0.0005, 0.0007, 0.001), 0.00012
# Schedules: of the first reheats, of a melt that tries a set, of a long one (least), of a reheat.
_FIRST, _MELT, _LONG_MELT, _REHEAT = 8_000, 10_000, 80_000, (8_000, 16_000, 30_000)
_SETS, _MAY = 3, 1.005  # how many are tried, and how far the end of one that may do is above the best of them
_MELTS = 0.65  # of the budget left after the first reheats, if it is enough for a long melt
_ROOM = 0.9925  # of the makespan: the cap of melts, so that they leave what stands
_ALLOWED = 0.999  # of the makespan: what stands beside a head must allow less
_BASE = 0.95  # of the makespan, for the soft maximum
_SECOND = (1.03, 1.06, 1.12, 1.12)
_SHARE, _REHEAT_SHARE = 0.85, 0.7
_TRIES = 20_000  # changes that bring a plan below a cap
_POOL = 6
_NEAR, _SWAPS = 1.003, 1_000  # times the makespan, from where swaps are tried; how many
_OPERATIONS_AT_ONCE = 1_000_000  # some 0.06 to 0.1 seconds in which nobody can end it
_NONE = np.empty(0, dtype=np.int64)


def annealed(
    table: Table,
    standings: Sequence[Standing],
    budget: Budget,
    until: float,
    goal: float,
    bound: float,
    generator: np.random.Generator,
) -> Standing:
    """The best plan that annealing finds, or the first of those given if it finds none that is better.

    Args:
        table: The case; without a limit of memory, for stages in any number on any device.
        standings: Where to begin, the best first.
        budget: What to spend; operations are counted as parts of schedules.
        until: Part of the budget at which to end.
        goal: A makespan that ends it.
        bound: No plan is shorter.
        generator: Source of the changes.
    """
    return _Reheats(table, standings, budget, goal, bound, generator).run(until)


class _Reheats:
    def __init__(
        self,
        table: Table,
        standings: Sequence[Standing],
        budget: Budget,
        goal: float,
        bound: float,
        generator: np.random.Generator,
    ) -> None:
        self._table, self._standings, self._budget, self._generator = table, standings, budget, generator
        self._goal, self._layers = goal, layers_of(table)
        self._makespan = standings[0].ordering.makespan
        self._shortest: tuple[Dealt, Terms] | None = None
        self._pool: list[tuple[Dealt, Ints]] = []
        self._swapped: Standing | None = None
        self._set: Sequence[int] = ()
        self._set_window = 0.0
        cap = max(_ROOM * self._makespan, (self._makespan + bound) / 2)
        self._melting = Terms(_BASE * self._makespan, cap, 1.06, _SHARE, True, _NONE, goal)
        kinds, edges = table.sums.shape
        self._operations = kinds * (edges - 1) * table.micro_batches
        self._expected = budget.evaluations / max(budget.spent, 1e-9)

    def run(self, until: float) -> Standing:
        for standing in self._standings[:2]:
            terms = self._melting._replace(cap=self._makespan)
            deal = deal_of(standing.sizes, standing.devices)
            self._cool(self._begun(standing, deal, terms), terms, _REHEATS[-2], _COLD, self._part(_FIRST, until))
        end = self._budget.spent + _MELTS * (until - self._budget.spent)
        if (end - self._budget.spent) * self._expected >= _SETS * _MELT + _LONG_MELT:
            self._melts(end)
        self._reheats(until)
        return self._standing()

    def _part(self, schedules: float, until: float) -> float:
        return min(until, self._budget.spent + schedules / self._expected)

    def _melts(self, until: float) -> None:
        """Cools molten plans slowly, one after another, with the same set beside the head as long as it is of use."""
        self._choose_set(until)
        num = max(1, int((until - self._budget.spent) * self._expected / _LONG_MELT))
        share = (until - self._budget.spent) / num
        for index in range(num):
            if self._set_window >= self._makespan:
                self._choose_set(until)
            self._melt(self._set, index, min(until, self._budget.spent + share))

    def _choose_set(self, until: float) -> None:
        """What stands beside the head from now on: the heaviest set of which a short melt does not say it cannot do."""
        sets = head_sets(self._table, self._layers, _ALLOWED * self._makespan)[:_SETS]
        ends = [self._melt(chosen, index, self._part(_MELT, until)) for index, chosen in enumerate(sets)]
        self._set = next((each for each, end in zip(sets, ends, strict=True) if end <= _MAY * min(ends)), ())
        self._set_window = 0.0  # of the chosen: the next melt tells it

    def _melt(self, chosen: Sequence[int], index: int, until: float) -> float:
        standing, terms = self._standings[index % len(self._standings)], self._melting
        deal = deal_of(standing.sizes, standing.devices)
        if chosen:
            deal, head = with_set(self._layers, deal, chosen, self._generator), deal.devices[-1]
            self._set_window = float(window_loads(self._table, *stages_dealt(deal))[head])
            terms = terms._replace(cap=max(terms.cap, self._set_window), locked=deal.devices[-1:].copy())
        deal = within(self._table, self._layers, deal, terms.cap, _TRIES, terms.locked, self._generator)
        best = self._cool(self._begun(standing, deal, terms), terms, *_MOLTEN, until)
        return soft_end(best.total, self._table.speeds.shape[0], terms.base)

    def _reheats(self, until: float) -> None:
        while self._pool and self._budget.spent < until and self._makespan > self._goal:
            self._reheat(until)

    def _reheat(self, until: float) -> None:
        # What stands beside the head in some may rule out plans shorter than the shortest by now.
        self._pool = [each for each in self._pool if self._window(each[0]) < self._makespan] or self._pool[:1]
        at = min(int(self._generator.exponential(1.2)), len(self._pool) - 1)
        parent, locked = self._pool[at]
        terms = self._melting._replace(
            cap=self._makespan, second=self._generator.choice(_SECOND), share=_REHEAT_SHARE, locked=locked
        )
        schedules = self._generator.choice(_REHEAT)
        self._cool(parent, terms, self._generator.choice(_REHEATS), _COLD, self._part(schedules, until))

    def _window(self, dealt: Dealt) -> float:
        return float(window_loads(self._table, *stages_dealt(dealt.deal)).max())

    def _begun(self, standing: Standing, deal: Deal, terms: Terms) -> Dealt:
        """A deal with the order of a plan, as far as its layers have one there."""
        kinds, edges = self._table.sums.shape
        sizes, num = standing.sizes, standing.sizes.shape[0]
        starts = standing.ordering.starts.reshape(kinds, -1, num).swapaxes(1, 2).reshape(kinds * num, -1)
        by_line = np.zeros((kinds * (edges - 1), starts.shape[1]))
        by_line[rows_of(sizes, kinds)] = np.sort(starts, axis=1)
        wanted = by_layer(self._table, sizes, stages_of(self._table, sizes, standing.devices), by_line)
        self._budget.charge(12)
        return standing_deal(self._table, deal, wanted, terms, 6)

    def _cool(self, begin: Dealt, terms: Terms, hot: float, cold: float, until: float) -> Dealt:
        """Anneals until a part of the budget is spent; the best of it joins the pool."""
        first, now, best, shortest = self._budget.spent, begin, begin, begin
        while (spent := self._budget.spent) < until and self._makespan > self._goal:
            heat = self._makespan * hot * (cold / hot) ** ((spent - first) / (until - first))
            now, best, shortest, operations = anneal(
                self._table, self._layers, now, best, shortest, terms, heat, _OPERATIONS_AT_ONCE, self._generator
            )
            self._budget.charge(max(1, round(operations / self._operations)))
            if shortest.makespan < self._makespan:
                self._makespan, self._shortest = shortest.makespan, (shortest, terms)
        for dealt, is_new in ((shortest, shortest.makespan < begin.makespan), (best, best.total < begin.total)):
            if is_new and dealt.makespan < _NEAR * self._makespan:
                self._swap(dealt, terms)
        if all(best.total != other.total for other, _ in self._pool):
            self._pool.append((best, terms.locked))
            self._pool.sort(key=lambda each: each[0].total)
            del self._pool[_POOL:]
        return best

    def _swap(self, dealt: Dealt, terms: Terms) -> None:
        """Shortens the order of a deal, if swaps do, and keeps it if none was shorter."""
        standing = self._ordered(dealt, terms, _SWAPS)
        self._budget.charge(1 + _SWAPS // SWAPS_A_SCHEDULE)
        if standing.ordering.makespan < self._makespan:
            self._makespan, self._swapped = standing.ordering.makespan, standing

    def _standing(self) -> Standing:
        known = self._standings[0] if self._shortest is None else self._ordered(*self._shortest, 0)
        return min(known, self._swapped or known, key=lambda standing: standing.ordering.makespan)

    def _ordered(self, dealt: Dealt, terms: Terms, swaps: int) -> Standing:
        """The plan of a deal; without swaps only what devices waited for in vain falls away."""
        table = self._table
        sizes, devices = stages_dealt(dealt.deal)
        kinds, num = table.sums.shape[0], sizes.shape[0]
        stages, rows, by_line = stages_of(table, sizes, devices), rows_of(sizes, kinds), np.empty(dealt.wanted.shape)
        judge = Judge(terms.base, inf, np.empty((0, 0)), inf, 0.0)
        express_pass(stages, rows, dealt.wanted, terms.is_express, False, judge, by_line)
        starts = by_line[rows].reshape(kinds, num, -1).swapaxes(1, 2).reshape(-1)
        starts, makespan, _ = reorder(stages, starts, inf, swaps, self._goal * (swaps > 0), self._generator)
        return standing_of(table, sizes, devices, Ordering(starts, makespan, starts, inf))
