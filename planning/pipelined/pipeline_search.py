"""A replica as the pipeline search would have it: cuts, places and the order of all passes found together."""

from functools import lru_cache

from evenkeel.layouts.layout import Replica
from evenkeel.pipelines.case import Case, Layer
from evenkeel.pipelines.layout import replica_of
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.generate import generate
from evenkeel.planning.costs.cost_model import BY_ORDERS
from evenkeel.planning.situation import Situation

_BUDGET = 16_000
"""Passes of the replicas that are looked at, all together: what a search takes follows their number."""
_EVALUATIONS = 300


class PipelineSearch:
    """Short searches for one situation's replicas, as many as its budget allows.

    Args:
        situation: For costs and speeds. Where the memory of devices is known the search is free first. If what it finds
            does not fit, and where memory is not known, no rank may hold more activations than the fullest one of the
            full shape.
    """

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._left = _BUDGET
        self._looked_at: set[Case] = set()

    def best(self, replica: Replica) -> Replica | None:
        """The best that is found for the ranks of a replica with one stage a rank; None where it is too large.

        A plan that leaves a device out is none: nobody would see it recover.
        """
        situation = self._situation
        for limit in (None, situation.home_activations)[situation.device_bytes is None :]:
            try:
                case = _case(situation, replica, limit)
            except ValueError:  # too few devices are left to keep within the limit
                continue
            plan = _plan(case) if self._may(case) else None
            if plan is None or len(set(plan.placement)) < case.devices:
                continue
            found = replica_of(plan, [(stage.ranks, stage.shares) for stage in replica.stages])
            if not situation.replica_excess_bytes(found):
                return found
        return None

    def _may(self, case: Case) -> bool:
        """Whether the budget allows a case; what was found for an earlier question counts too, for the same answer."""
        if case not in self._looked_at:
            passes = 3 * case.micro_batches * len(case.layers)
            if passes > self._left:
                return False
            self._left -= passes
            self._looked_at.add(case)
        return True


def _case(situation: Situation, replica: Replica, limit: float | None) -> Case:
    cost = situation.cost
    layers = [
        Layer(
            forward=forward,
            backward_input=max(0.0, of_input),  # the difference of two times
            backward_weight=of_weights,
            activation=float(sizes.activation_bytes or 1),
        )
        for (forward, of_input, of_weights), sizes in zip(
            cost.block_parts(BY_ORDERS).tolist(), cost.model.blocks, strict=True
        )
    ]
    whole = float(cost.seconds_to_block((1,), (1.0,))[-1])
    return Case(
        name="replica",
        devices=len(replica.stages),
        micro_batches=replica.num_micro_batches,
        layers=tuple(layers),
        communication=cost.workload.transfer_seconds,
        memory_limit=limit,
        speeds=tuple(
            [
                whole / float(cost.seconds_to_block(s.shares, tuple([situation.throughputs[r] for r in s.ranks]))[-1])
                for s in replica.stages
            ]
        ),
    )


@lru_cache(maxsize=64)
def _plan(case: Case) -> Plan | None:
    try:
        return generate(case, Budget(_EVALUATIONS)).plan
    except ValueError:  # nothing fits the limit
        return None
