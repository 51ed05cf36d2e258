"""The steps of a recording that form graphs, where some operations of others were lost."""

from dataclasses import dataclass

import numpy as np

from evenkeel.attribution.graph.graph import build_graph
from evenkeel.attribution.graph.replay import alike_steps
from evenkeel.attribution.operations import OperationError, Operations


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSteps:
    """What of a recording can be replayed.

    Attributes:
        operations: The operations of those steps.
        num_left_out: Steps that form no graph.
        problem: What is wrong with the first of these; empty for none.
    """

    operations: Operations
    num_left_out: int
    problem: str


def whole_steps(operations: Operations) -> WholeSteps:
    """The steps that form graphs.

    Raises:
        OperationError: No step does; says what is wrong with the first one.
    """
    problems: dict[int, OperationError] = {}
    for rows in alike_steps(operations):
        try:
            build_graph(operations.select(rows[:, 0]))
        except OperationError as error:
            problems |= dict.fromkeys(operations.step[rows[0]].tolist(), error)
    if not problems:
        return WholeSteps(operations=operations, num_left_out=0, problem="")
    first = problems[min(problems)]
    torn = np.isin(operations.step, list(problems))
    if torn.all():
        raise first
    return WholeSteps(operations=operations.select(~torn), num_left_out=len(problems), problem=first.problem)
