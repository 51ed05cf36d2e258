"""Checkpoint and restart, as plain frameworks do it.

Source: common practice, as the reference in ReCoVer (arXiv 2605.11215) and FT-HSDP (arXiv 2602.00277). Deviations:
the job restarts on the replicas that are whole (an operator or an elastic launcher does that) and keeps its global
batch; the time of a checkpoint's writing is not charged.
"""

from evenkeel.simulator.baselines._cells import spread, whole_replicas
from evenkeel.simulator.fleet.cost.transition import rollback_seconds
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of
from evenkeel.simulator.fleet.strategy import Answer, Question


class CheckpointRestart:
    """Every change of the set of whole replicas is a restart from the last checkpoint."""

    name = "checkpoint-restart"

    def answer(self, question: Question) -> Answer:
        """Whole replicas, after a restart."""
        home = question.home
        kept = whole_replicas(home, question.throughputs)
        if not kept:
            return Answer(operation=None)
        operation = operation_of(home)
        if len(kept) < len(home.replicas):
            operation = Operation(
                replicas=tuple(home.replicas[d].stages for d in kept), quotas=spread(home.num_micro_batches, len(kept))
            )
        if operation == question.current:
            return Answer(operation=operation)
        pause = rollback_seconds(question.at_seconds, question.costs)
        return Answer(operation=operation, pause_seconds=pause, reruns_iteration=False)
