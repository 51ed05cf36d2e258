"""Adaptra: deeper warm-up against stragglers in a pipeline.

Source: arXiv 2504.19232 (abstract): the warm-up depth of each stage is planned again so that slack absorbs delays.
It was made for slow communication; ResiHP compares with it on slow compute, and so do we. Deviations: its analytical
model is replaced by trying depths in the shared simulator; the backward is split, as in the zero-bubble schedules that
it starts from; slow sends are not modelled, so delegating them to the CPU gains nothing here. Dead devices: checkpoint
and restart.
"""

from evenkeel.simulator.baselines.checkpoint_restart import CheckpointRestart
from evenkeel.simulator.fleet.network import Discipline
from evenkeel.simulator.fleet.operation import Operation, operation_seconds
from evenkeel.simulator.fleet.strategy import Answer, Question

DEPTHS = (0, 1, 2, 4)


class Adaptra:
    """Warm-up depths by simulation."""

    name = "Adaptra"

    def answer(self, question: Question) -> Answer:
        """The best depth while somebody is slow."""
        plain = CheckpointRestart().answer(question)
        if plain.operation is None or not question.anybody_slow:
            if plain.operation and question.current and plain.operation.replicas == question.current.replicas:
                return Answer(operation=plain.operation)
            return plain
        base = plain.operation
        options = [base] + [
            Operation(
                replicas=base.replicas,
                quotas=base.quotas,
                discipline=Discipline(split_backward=True, extra_activations=depth),
            )
            for depth in DEPTHS
        ]
        best = min(options, key=lambda option: operation_seconds(question.cost, option, question.throughputs))
        same_cells = question.current is not None and question.current.replicas == best.replicas
        return Answer(operation=best, pause_seconds=0.0 if same_cells else plain.pause_seconds)
