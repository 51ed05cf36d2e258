"""Strengthened ReCycle: ReCycle with Greyhound's detection and micro-batch rebalancing.

Source: the baseline of ResiHP (arXiv 2605.06374). Quotas of replicas follow their estimated speed; the rerouting of
dead stages stays blind to speed, which is why ResiHP measures hardly any gain. Deviation: rebalancing is only done
where every cell of a replica is its own, elsewhere quotas of home stay.
"""

from evenkeel.simulator.baselines._cells import balanced_quotas
from evenkeel.simulator.baselines.pipelines.recycle import ReCycle
from evenkeel.simulator.fleet.operation.operation import Grid
from evenkeel.simulator.fleet.strategy import Question


class StrengthenedReCycle(ReCycle):
    """ReCycle whose quotas follow speed while no stage is dead."""

    name = "strengthened ReCycle"

    def quotas(self, question: Question, grid: Grid) -> tuple[int, ...]:
        """Balanced quotas when nobody is dead, else those of home."""
        start = super().quotas(question, grid)
        if any(stage is None for replica in grid for stage in replica) or not question.anybody_slow:
            return start
        return balanced_quotas(question, grid, start)
