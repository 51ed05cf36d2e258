"""No mitigation: the reference that everybody is measured against."""

from evenkeel.simulator.baselines._cells import moved
from evenkeel.simulator.fleet.operation.operation import operation_of
from evenkeel.simulator.fleet.strategy import Answer, Question


class NoMitigation:
    """The job crawls at its slowest device, and stands still while one is dead. It restarts when all are back."""

    name = "no mitigation"

    def answer(self, question: Question) -> Answer:
        """The home layout, or nothing."""
        if not set(question.home.ranks) <= question.throughputs.keys():
            return Answer(operation=None)
        return moved(question, operation_of(question.home))
