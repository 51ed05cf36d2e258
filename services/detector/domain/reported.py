"""What the ranks of a frame report of one quantity that some of them know, worked out in one pass."""

import math

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.observation import FrameObservation

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


Range = tuple[int, bool, float, float]
"""How many report a value, whether all of them are finite, and the lowest and the highest of the finite ones."""


def ranges_of(frame: FrameObservation) -> tuple[Range, Range]:
    """The range of the losses of a frame, and that of its gradient norms."""
    return _ranges(frame.losses, frame.has_loss, frame.gradient_norms, frame.has_gradient_norm)


@compiled
def _ranges(losses: Floats, has_loss: Bools, norms: Floats, has_norm: Bools) -> tuple[Range, Range]:
    """The ranges of two quantities; one value an entry, and which of them count."""
    return _range(losses, has_loss), _range(norms, has_norm)


@compiled
def _range(values: Floats, reported: Bools) -> Range:
    """The range of one quantity."""
    count, all_finite, lowest, highest = 0, True, math.inf, -math.inf
    for entry in range(len(values)):
        if reported[entry]:
            count += 1
            if math.isfinite(values[entry]):
                lowest, highest = min(lowest, values[entry]), max(highest, values[entry])
            else:
                all_finite = False
    return count, all_finite, lowest, highest
