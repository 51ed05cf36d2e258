"""Drop the replica: torchft.

Source: torchft's public code. A replica with a dead rank leaves, the others go on with their own micro-batches, so the
global batch shrinks; a repaired replica fetches the state from a peer while the others train. Deviations: a new quorum
costs what a change of groups costs every system here; slow devices are not acted upon, as there. FT-HSDP, which does
this with replicas of thousands of devices, is ``ft_hsdp.py``.
"""

from evenkeel.simulator.baselines._cells import on_replicas, whole_replicas
from evenkeel.simulator.fleet.strategy import Answer, Question


class DropReplica:
    """Whole replicas go on, with a smaller batch."""

    name = "drop replica"

    def answer(self, question: Question) -> Answer:
        """Whole replicas with their home quotas."""
        kept = whole_replicas(question.home, question.throughputs)
        if not kept:
            return Answer(operation=None)
        operation = on_replicas(question.home, kept, keeps_batch=False)
        if operation == question.current:
            return Answer(operation=operation)
        costs = question.costs
        pause = costs.restart_seconds if question.current is None else costs.transition.group_seconds
        return Answer(operation=operation, pause_seconds=pause)
