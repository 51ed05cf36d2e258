"""Finds a pipeline plan: cut, placement and order of work together.

Starting points come from patterns and from the OctoPipe rules; the promising ones climb by small changes of the
assignment, each judged by the order of work that it allows (late acceptance, Burke and Bykov, EJOR 258, 2017). Of some
random changes the best balanced is looked at, by work alone or by work and what the devices idled at the start of the
standing schedule by turns, and what cannot be better by its work alone is not looked at. What is
left of the budget goes to the order of the best. Deterministic for a seed as long as no deadline cuts it short.
"""

from dataclasses import dataclass
from itertools import chain
from random import Random

from pipelines.bounds import lower_bound
from pipelines.case import Case
from pipelines.evaluate import Evaluation, evaluate
from pipelines.octopipe import octopipe
from pipelines.plan import Plan
from pipelines.search.assignments import Assignment, balanced, neighbour, proposals
from pipelines.search.budget import Budget
from pipelines.search.dispatch import Schedule
from pipelines.search.heavy_layer import heavy_proposals
from pipelines.search.improve import Ordering, first_priorities, improve
from pipelines.search.network import Network, network_of, plan_of, starts_of
from pipelines.search.windows import WindowBalance, early_idle

DEFAULT_EVALUATIONS = 4000
_HISTORY = 15  # accepted if better than this many changes ago
_LEADERS = (4, 2, 1)  # how many climb in each heat
_MORE_LEADERS = (8, 3, 1)  # where many schedules are made in the same time
_FEW_DEVICES = 4
_HEAT_ENDS = (0.4, 0.7, 0.92)  # of the budget
_STARTS_END = 0.2
_START_PASSES = 20
_RULES_END = 0.5  # of the time; without a deadline the rules are carried out to their end
_FORESEES = 0.5  # part of the changes that are chosen by what devices idled, not by work alone
_NOISE = 0.01  # of the makespan


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


@dataclass(slots=True)
class _Climber:
    """One line of search: where it stands and the best it saw."""

    assignment: Assignment
    ordering: Ordering
    network: Network
    best: tuple[Network, Ordering]
    history: list[float]
    idle: list[float]
    steps: int = 0

    @property
    def makespan(self) -> float:
        return self.best[1].schedule.makespan


def _climber(assignment: Assignment, ordering: Ordering, network: Network) -> _Climber:
    return _Climber(
        assignment=assignment,
        ordering=ordering,
        network=network,
        best=(network, ordering),
        history=[ordering.schedule.makespan * 1.01] * _HISTORY,
        idle=early_idle(network, ordering.schedule),
    )


def generate(case: Case, budget: Budget | None = None, *, seed: int = 0, bound: float = 0.0) -> Generated:
    """The best plan that the budget finds.

    Args:
        case: The case.
        budget: What to spend; by default a fixed number of schedules.
        seed: Of the random changes.
        bound: A bound that is known, such as :func:`pipelines.placement_bound.placement_bound`'s; a plan as short as
            the stronger of it and :func:`pipelines.bounds.lower_bound` ends the search.

    Raises:
        ValueError: No assignment that fits the memory limit was found.
    """
    budget = budget or Budget(DEFAULT_EVALUATIONS)
    search = _Search(case, budget, Random(seed), max(bound, lower_bound(case)))
    network, ordering = search.run()
    plan = plan_of(network, ordering.schedule.starts)
    return Generated(plan=plan, evaluation=evaluate(case, plan), bound=search.bound, evaluations=budget.evaluations)


class _Search:
    def __init__(self, case: Case, budget: Budget, random: Random, bound: float) -> None:
        self._case, self._budget, self._random = case, budget, random
        self._balance = WindowBalance(case)
        self.bound = bound

    def run(self) -> tuple[Network, Ordering]:
        climbers = sorted(self._starts(), key=lambda climber: climber.makespan)
        baseline = self._baseline()
        if baseline is not None:
            climbers.insert(0, baseline)
        if not climbers:
            raise ValueError(
                f"no placement found in which each device holds one micro-batch within {self._case.memory_limit}; "
                "raise memory.limit, add devices, or allow more stages or more time"
            )
        begin = self._budget.spent
        quick = self._case.devices <= _FEW_DEVICES and self._case.memory_limit is None
        for count, end in zip(_MORE_LEADERS if quick else _LEADERS, _HEAT_ENDS, strict=True):
            climbers = climbers[:count]
            stop = max(begin, self._budget.spent)
            for index, climber in enumerate(climbers):
                share = (end - stop) * (index + 1) / len(climbers)
                self._climb(climber, stop + share)
            climbers.sort(key=lambda climber: climber.makespan)
            if climbers[0].makespan <= self.bound * (1 + 1e-9):
                break
        return self._polish(climbers[0])

    def _starts(self) -> list[_Climber]:
        """Every pattern, balanced in two ways, over and over: of equally even deals some are far easier to order."""
        case, seen = self._case, set[Assignment]()
        found: list[_Climber] = []
        for _ in range(_START_PASSES):
            for proposal in chain(heavy_proposals(case), proposals(case)):
                for keeps_devices in (True, False):
                    if self._budget.spent >= (_STARTS_END if found else 1.0):
                        return found
                    assignment = balanced(case, self._balance, proposal, self._random, 600, keeps_devices=keeps_devices)
                    if assignment in seen or not self._balance.fits(assignment):
                        continue
                    seen.add(assignment)
                    network = network_of(case, assignment.partition, assignment.placement)
                    ordering = improve(
                        network, first_priorities(network), self._budget, rounds=4, limit=case.memory_limit
                    )
                    found.append(_climber(assignment, ordering, network))
        return found

    def _baseline(self) -> _Climber | None:
        """Where the OctoPipe rules end: so the result is never behind them where they had the time to end."""
        try:
            plan = octopipe(self._case, is_over=lambda: self._budget.passed >= _RULES_END)
        except ValueError:
            return None
        network = network_of(self._case, plan.partition, plan.placement)
        evaluation = evaluate(self._case, plan)
        starts = starts_of(network, plan, evaluation.starts)
        ordering = Ordering(Schedule(starts, evaluation.makespan), starts, None)
        return _climber(Assignment(plan.partition, plan.placement), ordering, network)

    def _climb(self, climber: _Climber, until: float) -> None:
        idle = 0
        while self._budget.spent < until and climber.makespan > self.bound * (1 + 1e-9) and idle < 3000:
            slot = climber.steps % _HISTORY
            standing = climber.ordering.schedule.makespan
            assignment = self._candidate(climber, max(climber.history[slot], standing))
            if assignment is None:
                idle += 1
                continue
            idle = 0
            network = network_of(self._case, assignment.partition, assignment.placement)
            keeps = len(assignment.partition) == len(climber.assignment.partition)
            ordering = improve(
                network,
                climber.ordering.priorities if keeps else first_priorities(network),
                self._budget,
                rounds=2 if keeps else 4,
                target=climber.ordering.target if keeps else None,
                limit=self._case.memory_limit,
            )
            makespan = ordering.schedule.makespan
            if makespan <= climber.history[slot] or makespan <= standing:
                climber.assignment, climber.ordering, climber.network = assignment, ordering, network
                climber.idle = early_idle(network, ordering.schedule)
                standing = makespan
                if makespan < climber.makespan:
                    climber.best = network, ordering
            climber.history[slot] = standing
            climber.steps += 1

    def _candidate(self, climber: _Climber, worst: float) -> Assignment | None:
        """The best balanced of a few random changes; None if none could be accepted."""
        random, best, lowest = self._random, None, (float("inf"), float("inf"))
        foresees = random.random() < _FORESEES
        for _ in range(random.choice((1, 2, 8))):
            other = neighbour(self._case, climber.assignment, random)
            if random.random() < 0.3:
                other = neighbour(self._case, other, random)
            if other == climber.assignment or not self._balance.fits(other):
                continue
            score = self._balance.score(other)
            if score[0] > worst:
                continue
            if foresees:
                score = self._balance.foreseen(other, climber.idle)
            if score < lowest:
                best, lowest = other, score
        return best

    def _polish(self, climber: _Climber) -> tuple[Network, Ordering]:
        """Spends what is left on the order of the best assignment."""
        network, ordering = climber.best
        while self._budget.spent < 1 and ordering.schedule.makespan > self.bound * (1 + 1e-9):
            noise = ordering.schedule.makespan * _NOISE * self._random.choice((0.3, 1.0, 3.0))
            found = improve(
                network,
                ordering.priorities,
                self._budget,
                rounds=4,
                target=ordering.target,
                limit=self._case.memory_limit,
                noise=noise,
                random=self._random,
            )
            if found.schedule.makespan <= ordering.schedule.makespan:
                ordering = found
        return network, ordering
