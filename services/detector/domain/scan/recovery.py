"""Has an ill row recovered? One rule for all of them."""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.residual.recent import KEPT
from evenkeel.services.detector.domain.scan.level import level_of

Floats = npt.NDArray[np.float64]

SMALLEST_LEVEL = 0.045
"""Levels below this, log units of time, are nobody's illness."""

_ERRORS, _ERRORS_PER_RELAPSE = 3.1, 0.4
_SHORTEST = 4
_RECENT, _STILL_ILL = 16, 0.75


def may_be_recovering(residuals: Floats, *, level: float) -> bool:
    """Whether the newest frames lie well below the level, and the oldest do not: not the time to find it anew.

    Args:
        residuals: Of the newest frames of an ill row, oldest first; NaN where nothing was observed.
        level: How much slower than healthy it was told to be, log units of time.
    """
    limit = _STILL_ILL * level
    return bool(_mean(residuals[-_RECENT:]) < limit <= _mean(residuals[:_RECENT]))


def has_recovered(
    residuals: Floats, *, level: float, scale: float, width: float, num_relapses: int, num_frames: int
) -> bool:
    """Whether some stretch of the newest frames lies clearly below the half of the level.

    So does one of all that is kept that shows no difference from healthy any more. An ill row may scatter more than a
    healthy one: its noise is what it showed since the onset.

    Args:
        residuals: Of the newest frames of the row, oldest first; NaN where nothing was observed.
        level: How much slower than healthy it was told to be, log units of time.
        scale: Standard deviation of a healthy frame.
        width: How much wider a mean of some frames is than that of independent ones.
        num_relapses: How often it has recovered before.
        num_frames: Frames since the onset.
    """
    since = residuals[-num_frames:] if num_frames < len(residuals) else residuals
    known = since[np.isfinite(since)]
    if len(known) < _SHORTEST:
        return False
    # The recovery itself adds one step to it.
    errors = (_ERRORS + _ERRORS_PER_RELAPSE * num_relapses) * width * max(scale, level_of(known).scatter)
    limit = max(SMALLEST_LEVEL, level / 2)
    length = _SHORTEST
    while length <= len(known):
        if float(known[-length:].mean()) + errors / math.sqrt(length) < limit:
            return True
        length *= 2
    return len(known) >= KEPT and float(known.mean()) < errors / math.sqrt(len(known))


def _mean(residuals: Floats) -> float:
    known = residuals[np.isfinite(residuals)]
    return float(known.mean()) if len(known) else 0.0
