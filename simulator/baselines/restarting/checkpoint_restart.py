"""Checkpoint and restart, as plain frameworks do it.

Source: common practice, as the reference in ReCoVer (arXiv 2605.11215) and FT-HSDP (arXiv 2602.00277). Deviations:
the job restarts on the replicas that are whole (an operator or an elastic launcher does that) and keeps its global
batch; the time of a checkpoint's writing is not charged.
"""

from evenkeel.simulator.baselines._cells import on_replicas, rolled_back, whole_replicas
from evenkeel.simulator.fleet.strategy import Answer, Question


class CheckpointRestart:
    """Every change of the set of whole replicas is a restart from the last checkpoint."""

    name = "checkpoint-restart"

    def answer(self, question: Question) -> Answer:
        """Whole replicas, after a restart."""
        kept = whole_replicas(question.home, question.throughputs)
        return rolled_back(question, on_replicas(question.home, kept)) if kept else Answer(operation=None)
