"""Has an ill row recovered? One rule for all of them."""

import math

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.domain.scan.level import ERRORS, SHORTEST
from evenkeel.services.detector.domain.scan.residual.recent import KEPT
from evenkeel.services.detector.domain.scan.residual.tables import mean

_ERRORS_PER_RELAPSE = 0.4
_STILL_ILL = 0.75


def may_be_recovering(residuals: Floats, *, level: float) -> bool:
    """Whether the newest frames lie well below the level: not the time to find it anew from all.

    Args:
        residuals: Of the newest frames of an ill row, oldest first; NaN where nothing was observed.
        level: How much slower than healthy it was told to be, log units of time.
    """
    return float(np.nan_to_num(mean(residuals[-SHORTEST:]))) < _STILL_ILL * level


def has_recovered(residuals: Floats, *, level: float, scale: float, num_relapses: int, smallest: float) -> bool:
    """Whether some stretch of the newest frames lies clearly below the half of the level.

    So does one of all that is kept that shows no difference from healthy any more.

    Args:
        residuals: Of the newest frames of the row since it stands there, oldest first; NaN where nothing was observed.
        level: How much slower than healthy it was told to be, log units of time.
        scale: Standard deviation of a frame, as if all were independent.
        num_relapses: How often it has recovered before.
        smallest: Levels below this are no illness.
    """
    known = residuals[np.isfinite(residuals)]
    if len(known) < SHORTEST:
        return False
    errors = (ERRORS + _ERRORS_PER_RELAPSE * num_relapses) * scale
    limit = max(smallest, level / 2)
    length = SHORTEST
    while length <= len(known):
        if float(known[-length:].mean()) + errors / math.sqrt(length) < limit:
            return True
        length *= 2
    return len(known) >= KEPT and float(known.mean()) < errors / math.sqrt(len(known))
