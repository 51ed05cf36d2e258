"""Evenkeel: the very solver and pays-or-not rule of the scheduler, asked by the simulation.

:class:`EvenkeelMix` is the same for a job that was registered with a sequence mix, as the engine runs it: which of the
same global batch's documents go to which replica, so that replicas of unequal speed get micro-batches of unequal size.
The simulation takes documents as small against a replica's share. After a death survivors keep their sums, as the
engine does (docs/engine.md, "What a failure costs of the iteration").
"""

from collections.abc import Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.sizes.mix import Mix, even_mix
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import NoPlanError
from evenkeel.services.scheduler.plans.decision import Choice, DecisionRule, decide
from evenkeel.simulator.baselines._cells import moved
from evenkeel.simulator.fleet.operation.operation import layout_of, operation_of
from evenkeel.simulator.fleet.strategy import Answer, Question

MAX_SCALE = 1.5
"""Largest micro-batch, 1 = as registered: what a device must have of activation memory in reserve."""


class Evenkeel:
    """Widths, splits, quotas, standbys, merged stages: what the scheduler plans for live jobs."""

    name = "Evenkeel"

    def answer(self, question: Question) -> Answer:
        """The solver's plan, when it pays."""
        try:
            solution = solve(situation_of(question))
        except NoPlanError:
            return Answer(operation=None)
        if decide(DecisionRule(), solution, forced=question.current_is_dead).choice is Choice.KEEP:
            return Answer(operation=question.current)
        operation, mix = operation_of(solution.layout), solution.layout.mix
        if mix is not None and len(set(mix.weights)) > 1:
            operation = replace(operation, scales=mix.scales(operation.quotas))
        return moved(question, operation, keeps_sums=True)


def situation_of(question: Question) -> Situation:
    """The question as the planner puts it."""
    current, home = question.current, question.home
    layout = home if current is None else layout_of(current, home.num_blocks)
    if home.mix is not None:
        scales = (current.scales if current else ()) or (1.0,) * len(layout.replicas)
        layout = replace(layout, mix=mix_of(home.mix, layout, scales))
    layout = replace(layout, routable=home.routable)
    live = frozenset(question.throughputs)
    return Situation(
        layout=layout,
        home=question.home,
        throughputs=question.throughputs,
        cost=question.cost,
        holders=live & frozenset(layout.ranks),
        transition=question.costs.transition,
        device_bytes=question.costs.device_bytes,
        links=question.links,
        domains={rank: rank // question.topology.devices_per_node for rank in question.home.ranks},
    )


def mix_of(rule: Mix, layout: Layout, scales: Sequence[float]) -> Mix:
    """The rule under which the replicas of a layout have micro-batches of these sizes."""
    runs = [
        (replica.num_micro_batches, round(1000.0 * scale))
        for replica, scale in zip(layout.replicas, scales, strict=True)
        if replica.num_micro_batches
    ]
    if len({weight for _, weight in runs}) == 1:
        return even_mix([count for count, _ in runs], token_cost=rule.token_cost, square_cost=rule.square_cost)
    return replace(rule, counts=tuple(count for count, _ in runs), weights=tuple(weight for _, weight in runs))


class EvenkeelMix(Evenkeel):
    """The same, for a job whose engine follows a sequence mix."""

    name = "Evenkeel + sequence mix"

    def answer(self, question: Question) -> Answer:
        """The solver's plan for the job with its mix, when it pays."""
        return super().answer(replace(question, home=with_mix(question.home)))


def with_mix(home: Layout) -> Layout:
    """The job, registered with a mix."""
    # Costs are only used when documents are dealt out, which the simulation does not do one by one.
    quotas = [replica.num_micro_batches for replica in home.replicas]
    return replace(home, mix=even_mix(quotas, token_cost=1.0, square_cost=0.0, max_scale=MAX_SCALE))
