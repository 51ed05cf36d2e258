"""Strengthened Oobleck: Oobleck with Greyhound's detection and micro-batch rebalancing.

Source: the baseline of ResiHP (arXiv 2605.06374). The templates are chosen as if everybody were healthy; the batch is
then split over the pipelines by their estimated speed, and a template's layers follow the estimated speed of its
stages when that is faster.
"""

from evenkeel.planning.levers.balance.layer_split import fastest_stages
from evenkeel.planning.situation import Situation
from evenkeel.simulator.baselines._cells import balanced_quotas
from evenkeel.simulator.baselines.pipelines.oobleck import Oobleck
from evenkeel.simulator.fleet.operation.operation import Operation
from evenkeel.simulator.fleet.strategy import Question


class StrengthenedOobleck(Oobleck):
    """Oobleck that sees slow devices."""

    name = "strengthened Oobleck"

    def tuned(self, question: Question, operation: Operation) -> Operation:
        """Splits and quotas by estimated speed."""
        if not question.anybody_slow:
            return operation
        situation = Situation(
            layout=question.home,
            home=question.home,
            throughputs=question.throughputs,
            cost=question.cost,
            holders=frozenset(question.throughputs),
            transition=question.costs.transition,
        )
        shapes = [tuple(stage for stage in stages if stage) for stages in operation.replicas]
        grid = tuple(
            fastest_stages(situation, shape, quota, "1f1b", widths=False, splits=True) or shape
            for shape, quota in zip(shapes, operation.quotas, strict=True)
        )
        return Operation(replicas=grid, quotas=balanced_quotas(question, grid, operation.quotas))
