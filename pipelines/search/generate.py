"""Finds a pipeline plan: cut, placement and order of work together.

Starting points come from patterns and from the OctoPipe rules; the promising ones climb by small changes of the
assignment (:mod:`evenkeel.pipelines.search.climbing.climb`). What is left of the budget goes to the order of the best.
Deterministic for a seed as long as no deadline cuts it short.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np

from evenkeel.pipelines.case import Case
from evenkeel.pipelines.evaluate import Evaluation, evaluate
from evenkeel.pipelines.octopipe import octopipe
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.proofs.bounds import lower_bound
from evenkeel.pipelines.search.annealing.reheat import annealed
from evenkeel.pipelines.search.budget import DEFAULT_EVALUATIONS, Budget
from evenkeel.pipelines.search.climbing.changes import balanced
from evenkeel.pipelines.search.climbing.climb import Climber, Standing, climb, climber_of, ordered, standing_of
from evenkeel.pipelines.search.climbing.improve import Ordering, improve
from evenkeel.pipelines.search.climbing.reorder import SWAPS_A_SCHEDULE, reorder
from evenkeel.pipelines.search.dispatching.network import network_of, plan_of, starts_of
from evenkeel.pipelines.search.starts.assignments import Assignment, proposals
from evenkeel.pipelines.search.starts.balance import Balance, fits
from evenkeel.pipelines.search.starts.head_sets import is_head_heavy
from evenkeel.pipelines.search.starts.heavy_layer import heavy_proposals
from evenkeel.pipelines.search.starts.published import published_plans
from evenkeel.pipelines.search.tables import stages_of, table_of

_LEADERS = (4, 2, 1)  # how many climb in each heat
_HISTORY = (15, 150, 1 / 80)  # least, most, and as a part of the schedules that the search will make in all
_HEAT_ENDS = (0.4, 0.7, 0.92)  # of the budget
_STARTS_END = 0.1
# Schedules from which on a search anneals too; those that climbing then has, and its least and most part.
_LEAST_FOR_ANNEALING, _CLIMBED, _CLIMBING = 10_000, 60_000, (0.05, 0.8)
_ANNEALING_ENDS = 0.96
_START_PASSES = 20
_RULES_END = 0.5  # of the time; without a deadline the rules are carried out to their end
_NOISE = 0.01  # of the makespan
# Operations of a small case, were each layer a stage, and the schedules that each is worth: there the order decides.
_MOST_OF_SMALL, _SCHEDULES_OF_SMALL = 120, 100
_SMALL_ENDS = 0.6  # of the ends of heats in small cases
_SMALL_SWAPS = 20  # after which an order is judged there; in large cases list schedules alone lead on
_SWAPS = 1000  # between two schedules with noise
_AROUND = 1.01  # times the best, from where swaps begin
_OPERATIONS_AT_ONCE = 500_000  # of the schedules of one call: some 0.1 seconds in which nobody can end it


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What the generator found.

    Attributes:
        plan: The plan.
        evaluation: What it is worth.
        bound: No plan of the case can be shorter.
        evaluations: Schedules that were made to find it.
    """

    plan: Plan
    evaluation: Evaluation
    bound: float
    evaluations: int

    @property
    def gap(self) -> float:
        """How much longer than the bound the plan is: 0.03 is 3 %."""
        return self.evaluation.makespan / self.bound - 1.0 if self.bound else 0.0


def generate(case: Case, budget: Budget | None = None, *, seed: int = 0, bound: float = 0.0) -> Generated:
    """The best plan that the budget finds.

    Args:
        case: The case.
        budget: What to spend; by default a fixed number of schedules.
        seed: Of the random changes.
        bound: A bound that is known, as :func:`evenkeel.pipelines.proofs.placement_bound.placement_bound` gives; a plan
            as short as the stronger of it and :func:`evenkeel.pipelines.proofs.bounds.lower_bound` ends the search.

    Raises:
        ValueError: No assignment that fits the memory limit was found.
    """
    budget = budget or Budget(DEFAULT_EVALUATIONS)
    search = _Search(case, budget, seed, max(bound, lower_bound(case)))
    found = search.run()
    network = network_of(case, found.sizes.tolist(), found.devices.tolist())
    plan = plan_of(network, found.ordering.starts.tolist())
    return Generated(plan=plan, evaluation=evaluate(case, plan), bound=search.bound, evaluations=budget.evaluations)


class _Search:
    def __init__(self, case: Case, budget: Budget, seed: int, bound: float) -> None:
        self._case, self._budget, self._table = case, budget, table_of(case)
        self._generator = np.random.default_rng(abs(seed))
        self.bound = bound
        self._goal = bound * (1 + 1e-9)

    def run(self) -> Standing:
        starts = sorted(self._starts(), key=lambda standing: standing.ordering.makespan)
        known = list(self._known(starts[0].ordering.makespan if starts else inf))
        starts[:0] = sorted(known, key=lambda standing: standing.ordering.makespan)[:1]
        if not starts:
            raise ValueError(
                f"no placement found in which each device holds one micro-batch within {self._case.memory_limit}; "
                "raise memory.limit, add devices, or allow more stages or more time"
            )
        climbers = [climber_of(standing, self._history()) for standing in starts[: _LEADERS[0]]]
        begin, rest, is_small = self._budget.spent, list[Climber](), self._is_small()
        climbing = _SMALL_ENDS if is_small else self._climbing()
        ends = [end * climbing for end in _HEAT_ENDS]
        for count, end in zip(_LEADERS, ends, strict=True):
            rest = climbers[count:] + rest
            climbers = climbers[:count]
            stop = max(begin, self._budget.spent)
            for index, climber in enumerate(climbers):
                share = (end - stop) * (index + 1) / len(climbers)
                climbers[index] = self._climbed(climber, stop + share, _SMALL_SWAPS * is_small)
            climbers.sort(key=_makespan)
            if _makespan(climbers[0]) <= self._goal:
                break
        finalists = [climber.best for climber in [*climbers, *rest * is_small]]
        if climbing < 1 and not is_small and _makespan(climbers[0]) > self._goal:
            standings = [climber.best for climber in [*climbers, *rest]]
            until, generator = _ANNEALING_ENDS, self._generator
            finalists = [annealed(self._table, standings, self._budget, until, self._goal, self.bound, generator)]
        polished = [self._polished(each, len(finalists) - index) for index, each in enumerate(finalists)]
        return min(polished, key=lambda standing: standing.ordering.makespan)

    def _starts(self) -> list[Standing]:
        """Every pattern, balanced in two ways, over and over: of equally even deals some are far easier to order."""
        case, table, seen = self._case, self._table, set[Assignment]()
        found: list[Standing] = []
        for _ in range(_START_PASSES):
            for proposal in chain(heavy_proposals(case), proposals(case)):
                for keeps_devices in (True, False):
                    if self._budget.spent >= (_STARTS_END if found else 1.0):
                        return found
                    arrays = np.array(proposal.partition), np.array(proposal.placement)
                    sizes, devices = balanced(table, *arrays, self._generator, 600, keeps_devices)
                    assignment = Assignment(tuple(sizes.tolist()), tuple(devices.tolist()))
                    if assignment in seen or not fits(table, sizes, devices):
                        continue
                    seen.add(assignment)
                    found.append(ordered(table, sizes, devices, 4, self._generator))
                    self._budget.charge(4)
        return found

    def _known(self, shortest: float) -> Iterator[Standing]:
        """Where the OctoPipe rules end, and published schedules: so the result is behind none that had the time to end.

        Args:
            shortest: Length of a plan that is known; what cannot be shorter by its work is passed over.
        """

        def may_help(assignment: Assignment) -> bool:
            return max(balance.windows(assignment)) < shortest and self._budget.passed < _RULES_END

        case, balance = self._case, Balance(self._case)
        with suppress(ValueError):
            yield self._standing(octopipe(case, is_over=lambda: self._budget.passed >= _RULES_END))
        for plan in published_plans(case, may_help):
            with suppress(ValueError):  # breaks the limit or a rule of the case
                yield self._standing(plan)

    def _standing(self, plan: Plan) -> Standing:
        network = network_of(self._case, plan.partition, plan.placement)
        evaluation = evaluate(self._case, plan)
        starts = np.array(starts_of(network, plan, evaluation.starts), dtype=np.float64)
        ordering = Ordering(starts, float(evaluation.makespan), starts, np.inf)
        sizes, devices = np.array(plan.partition), np.array(plan.placement)
        return standing_of(self._table, sizes, devices, ordering)

    def _history(self) -> int:
        """How long ago a climber compares itself with: the longer the search, the longer."""
        least, most, part = _HISTORY
        return int(min(max(least, part * self._expected()), most))

    def _expected(self) -> float:
        """How many schedules the search will make in all."""
        return self._budget.evaluations / max(self._budget.spent, 1e-9)

    def _climbing(self) -> float:
        """The part of the heats' time that they have: less where annealing is of use and has the time for it."""
        table, expected = self._table, self._expected()
        is_free = table.limit == inf and table.may_move and table.stages == 0 and self._case.stage_bias is None
        if not is_free or not is_head_heavy(table) or expected < _LEAST_FOR_ANNEALING:
            return 1.0
        least, most = _CLIMBING
        return float(min(max(least, _CLIMBED / expected), most))

    def _is_small(self) -> bool:
        kinds, edges = self._table.sums.shape
        operations = kinds * (edges - 1) * self._table.micro_batches
        return bool(operations <= min(_MOST_OF_SMALL, self._expected() / _SCHEDULES_OF_SMALL))

    def _climbed(self, climber: Climber, until: float, swaps: int) -> Climber:
        while self._budget.spent < until and _makespan(climber) > self._goal:
            schedules = self._schedules(climber.standing, until)
            climber, made = climb(self._table, climber, schedules, self._goal, swaps, self._generator)
            self._budget.charge(made)
            if made < schedules:
                break
        return climber

    def _polished(self, standing: Standing, waiting: int) -> Standing:
        """Spends its part of what is left, one of so many, on the order of an assignment."""
        stages, budget = stages_of(self._table, standing.sizes, standing.devices), self._budget
        limit = self._table.limit
        until = budget.spent + max(0.0, 1 - budget.spent) / waiting
        best = now = standing.ordering
        while budget.spent < until and best.makespan > self._goal:
            swaps = min(_SWAPS, SWAPS_A_SCHEDULE * self._schedules(standing, until))
            starts, makespan, made = reorder(stages, now.starts, limit, swaps, self._goal, self._generator)
            budget.charge(1 + made // SWAPS_A_SCHEDULE)
            if makespan < best.makespan:
                best = Ordering(starts, makespan, starts, np.inf)
            noise, worst = best.makespan * _NOISE * self._generator.choice((0.3, 1.0, 3.0)), _AROUND * best.makespan
            now = improve(stages, best.priorities, best.target, limit, 4, noise, self._generator, worst)
            budget.charge(4)
            if now.makespan == inf:
                now = best
            elif now.makespan <= best.makespan:
                best = now
        return standing._replace(ordering=best)

    def _schedules(self, standing: Standing, until: float) -> int:
        """How many schedules the next call may make."""
        at_once = max(1, _OPERATIONS_AT_ONCE // len(standing.ordering.starts))
        return min(at_once, self._budget.left(until))


def _makespan(climber: Climber) -> float:
    return climber.best.ordering.makespan
