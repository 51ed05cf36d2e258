"""Steps of a recording that are not whole: the recorder came late, was stopped in the middle, or lost something."""

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.operations import Operations, OperationType
from evenkeel.numeric.arrays import Ints

_NOW_AND_THEN = (OperationType.GARBAGE_COLLECTION, OperationType.INPUT)
_NEARLY_ALL = 0.9


def torn_steps(operations: Operations) -> tuple[int, ...]:
    """The steps that are not whole, ascending.

    In a torn step a worker lacks a kind of operation that it runs in nearly all other steps (of two steps: in the other
    one), or does not run as many backwards as forwards although it does so in those. The first and the last step, which
    are torn oftenest, are held against those between them. Fewer micro-batches are no tear.
    """
    steps, step_of = np.unique(operations.step, return_inverse=True)
    if len(steps) < 2:
        return ()
    counts = _counts(operations, step_of.ravel(), ~np.isin(operations.optype, _NOW_AND_THEN))
    forwards = _counts(operations, step_of.ravel(), operations.optype == OperationType.FORWARD, by_kind=False)
    backwards = _counts(operations, step_of.ravel(), operations.optype == OperationType.BACKWARD, by_kind=False)
    uneven = forwards != backwards
    between = range(1, len(steps) - 1) if len(steps) > 2 else range(2)
    torn = []
    for place in range(len(steps)):
        num_others = len(between) - (place in between)
        runs = (counts[between] > 0).sum(axis=0) - (counts[place] > 0) * (place in between)
        odd = uneven[between].sum(axis=0) - uneven[place] * (place in between)
        lacks = (counts[place] == 0) & (runs >= max(_NEARLY_ALL * num_others, 1))
        if lacks.any() or (uneven[place] & (odd <= (1 - _NEARLY_ALL) * num_others)).any():
            torn.append(int(steps[place]))
    # Of two steps that lack something of one another, neither is known to be whole.
    return tuple(torn) if len(torn) < len(steps) else ()


def _counts(operations: Operations, step_of: Ints, wanted: npt.NDArray[np.bool_], *, by_kind: bool = True) -> Ints:
    """How many of the wanted operations each worker runs in each step, of each kind or in all."""
    _, kind = np.unique(operations.optype, return_inverse=True)
    keys = np.stack([operations.dp_rank, operations.stage, kind.ravel() * by_kind])
    _, key = np.unique(keys, axis=1, return_inverse=True)
    found = np.zeros((int(step_of.max()) + 1, int(key.max()) + 1), dtype=np.int64)
    np.add.at(found, (step_of[wanted], key.ravel()[wanted]), 1)
    return found
