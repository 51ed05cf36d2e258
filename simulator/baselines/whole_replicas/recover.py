"""ReCoVer: whole replicas, constant batch, integer roles.

Source: arXiv 2605.11215, section 4 (versatile workload). With W live replicas G is the smallest number with
W x G >= B; N = floor(B / G) majors run G micro-batches, one minor runs the rest, the others are spares that compute
and contribute nothing. Deviations: the in-step recovery (re-reduction of buckets) costs what a change of groups costs
every system here; no rejoin, as published, so a replica that has left stays out.
"""

from evenkeel.simulator.baselines._cells import whole_replicas
from evenkeel.simulator.fleet.operation.operation import Operation, layout_of
from evenkeel.simulator.fleet.strategy import Answer, Question


def roles(num_replicas: int, batch: int) -> tuple[int, ...]:
    """Micro-batches that each live replica contributes.

    >>> roles(31, 256)[27:]
    (9, 4, 0, 0)
    """
    most = -(-batch // num_replicas)
    majors, rest = divmod(batch, most)
    found = [most] * majors + ([rest] if rest else [])
    return tuple(found + [0] * (num_replicas - len(found)))


class ReCoVer:
    """A dead device takes its replica out for good; the rest share the whole batch."""

    name = "ReCoVer"

    def answer(self, question: Question) -> Answer:
        """Whole replicas that never left, each with its role."""
        home = question.home
        kept = whole_replicas(home, question.throughputs)
        if question.current is None:
            return Answer(operation=None)
        working = question.current.ranks
        kept = [d for d in kept if home.replicas[d].ranks[0] in working]
        if not kept:
            return Answer(operation=None)
        operation = Operation(
            replicas=tuple(home.replicas[d].stages for d in kept), quotas=roles(len(kept), home.num_micro_batches)
        )
        layout_of(operation, home.num_blocks)
        pause = 0.0 if operation == question.current else question.costs.transition.group_seconds
        return Answer(operation=operation, pause_seconds=pause, reruns_iteration=False)
