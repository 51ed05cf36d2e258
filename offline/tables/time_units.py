"""In which unit a recording of operations counts time, told from its clock and from how long computations take."""

import numpy as np

from evenkeel.attribution import Operations
from evenkeel.attribution.operations import COMPUTE
from evenkeel.offline.operations.step_seconds import step_seconds

_UNITS = {"milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
_LONGEST_USUAL_SECONDS = 600.0
# Years 2001 to 2100 in seconds since 1970, and computations that are believable.
_EPOCH = 1e9, 4.2e9
_COMPUTATION_SECONDS = 1e-5, 10.0
_USUAL_COMPUTATION_SECONDS = 0.01


def unit_of(operations: Operations) -> tuple[str, float]:
    """The unit's name and its length in seconds; ("seconds", 1.0) unless there are signs of another one.

    A clock that stands at one of our years in a unit says so. Else steps of more than ten minutes are no seconds, and
    the unit is the one in which computations come nearest to a hundredth of a second.
    """
    started = float(np.median(operations.start_seconds))
    computed = float(np.median(operations.duration_seconds[np.isin(operations.optype, list(COMPUTE))]))
    for name, seconds in _UNITS.items():
        if _EPOCH[0] <= seconds * started < _EPOCH[1] and (
            _COMPUTATION_SECONDS[0] <= seconds * computed <= _COMPUTATION_SECONDS[1]
        ):
            return name, seconds
    if computed <= 0 or float(np.median(step_seconds(operations)[1])) < _LONGEST_USUAL_SECONDS:
        return "seconds", 1.0
    return min(_UNITS.items(), key=lambda unit: abs(np.log(unit[1] * computed / _USUAL_COMPUTATION_SECONDS)))
