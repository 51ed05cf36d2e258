"""Computations that now and then take much longer than usual: garbage collection, page faults, a busy host."""

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.causes.sequences import medians
from evenkeel.attribution.operations import COMPUTE, Operations
from evenkeel.numeric.arrays import Floats

TIMES_THE_USUAL = 2.0
"""A computation that takes so many times what is usual for it has paused."""


def pauses(operations: Operations, seconds: Floats) -> npt.NDArray[np.bool_]:
    """Which operations paused; usual is the median of the worker's computations of the same kind and chunk.

    Args:
        operations: The recording.
        seconds: What each operation takes of its own, for sequences of the usual length.
    """
    found = np.zeros(len(operations), dtype=np.bool_)
    rows = np.flatnonzero(np.isin(operations.optype, list(COMPUTE)))
    _, kind = np.unique(operations.optype[rows], return_inverse=True)
    places = np.stack([operations.rank[rows], operations.global_chunk[rows], kind.ravel()])
    _, place = np.unique(places, axis=1, return_inverse=True)
    usual = medians(place.ravel(), seconds[rows])[place.ravel()]
    found[rows] = seconds[rows] > TIMES_THE_USUAL * usual
    return found
