"""Evenkeel: the very solver and pays-or-not rule of the scheduler, asked by the simulation.

:class:`Evenkeel` uses what the engine of today can do. :class:`EvenkeelMix` adds the sequence mix: which of the same
global batch's documents go to which replica, so that replicas of unequal speed get micro-batches of unequal size; the
engine does not have that lever yet. It assumes that documents are small against a replica's share.
"""

from layouts.layout import Layout
from services.scheduler.planning.decision import Choice, DecisionRule, decide
from services.scheduler.planning.situation import Situation
from services.scheduler.planning.solution import NoPlanError, Solution
from services.scheduler.planning.solver import solve
from simulator.fleet.operation import Operation, layout_of, operation_of, operation_seconds
from simulator.fleet.strategy import Answer, Question
from simulator.fleet.transition import transition_seconds

MAX_SCALE = 1.5
"""Largest micro-batch, 1 = as registered: what a device must have of activation memory in reserve."""


class Evenkeel:
    """Widths, splits, quotas, standbys, merged stages: what the scheduler plans for live jobs."""

    name = "Evenkeel"

    def __init__(self, rule: DecisionRule | None = None) -> None:
        self._rule = rule or DecisionRule()

    def answer(self, question: Question) -> Answer:
        """The solver's plan, when it pays."""
        solved = self._solved(question)
        if solved is None:
            return Answer(operation=None)
        solution, forced = solved
        if decide(self._rule, solution, forced=forced).choice is Choice.KEEP:
            return Answer(operation=question.current)
        return self._moved(question, operation_of(solution.layout))

    def _solved(self, question: Question) -> tuple[Solution, bool] | None:
        try:
            return solve(situation_of(question)), question.current_is_dead
        except NoPlanError:
            return None

    @staticmethod
    def _moved(question: Question, operation: Operation) -> Answer:
        pause = transition_seconds(question.cost.model, question.current, operation, question.costs)
        return Answer(operation=operation, pause_seconds=pause)


def situation_of(question: Question) -> Situation:
    """The question as the planner puts it."""
    current = question.current
    layout: Layout = question.home if current is None else layout_of(current, question.home.num_blocks)
    live = frozenset(question.throughputs)
    return Situation(
        layout=layout,
        home=question.home,
        throughputs=question.throughputs,
        cost=question.cost,
        holders=live & frozenset(layout.ranks),
        transition=question.costs.transition,
    )


class EvenkeelMix(Evenkeel):
    """The same, with micro-batches whose size follows the speed of their replica."""

    name = "Evenkeel + sequence mix"

    def answer(self, question: Question) -> Answer:
        """The solver's plan, its replicas evened out to the last document."""
        solved = self._solved(question)
        if solved is None:
            return Answer(operation=None)
        solution, forced = solved
        mixed = mixed_operation(question, solution.layout)
        if not forced and question.current is not None:
            now = operation_seconds(question.cost, question.current, question.throughputs)
            then = operation_seconds(question.cost, mixed, question.throughputs)
            pause = transition_seconds(question.cost.model, question.current, mixed, question.costs)
            gain = (1.0 - then / now) * self._rule.horizon_seconds
            if 1.0 - then / now < self._rule.min_gain or gain <= self._rule.safety * pause:
                return Answer(operation=question.current)
        return self._moved(question, mixed)


def mixed_operation(question: Question, layout: Layout) -> Operation:
    """The layout with the sizes of micro-batches that make its replicas end together."""
    home = question.home
    base = operation_of(layout)
    quota = max(replica.num_micro_batches for replica in home.replicas)
    # As many micro-batches as at home keep the pipeline full; sizes do the balancing. Fewer replicas need more of them.
    quota = max(quota, -(-home.num_micro_batches // len(layout.replicas)))
    seconds = [
        question.cost.makespan(replica.stages, quota, question.throughputs, layout.schedule)
        for replica in layout.replicas
    ]
    rate = sum(quota / each for each in seconds)
    scales = [home.num_micro_batches / rate / each for each in seconds]
    mixed = Operation(replicas=base.replicas, quotas=(quota,) * len(scales), scales=tuple(scales))
    if max(scales) > MAX_SCALE or operation_seconds(question.cost, mixed, question.throughputs) >= (
        operation_seconds(question.cost, base, question.throughputs) * (1.0 - 1e-6)
    ):
        return base
    return mixed
