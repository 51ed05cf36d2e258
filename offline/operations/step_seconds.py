"""How long the steps of a recording took, as they were recorded."""

import numpy as np
import numpy.typing as npt

from evenkeel.attribution import Operations


def step_seconds(operations: Operations) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The steps, ascending, and seconds from the first operation of each to the end of its last."""
    steps, place = np.unique(operations.step, return_inverse=True)
    starts, ends = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(starts, place.ravel(), operations.start_seconds)
    np.maximum.at(ends, place.ravel(), operations.end_seconds)
    return steps, ends - starts
