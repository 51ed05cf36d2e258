"""What the ranks of a frame report of one quantity that some of them know, worked out in one pass."""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


Range = tuple[int, bool, float, float]
"""How many report a value, whether all of them are finite, and the lowest and the highest of the finite ones."""


@compiled
def range_of(values: Floats, reported: Bools) -> Range:
    """The range of one quantity; one value an entry, and which of them count."""
    count, all_finite, lowest, highest = 0, True, math.inf, -math.inf
    for entry in range(len(values)):
        if reported[entry]:
            count += 1
            if math.isfinite(values[entry]):
                lowest, highest = min(lowest, values[entry]), max(highest, values[entry])
            else:
                all_finite = False
    return count, all_finite, lowest, highest
