"""What is left of a window of residuals once the straight line through it is taken away."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_FEWEST = 8


def without_trend(window: Floats) -> Floats:
    """One row of residuals less its line of least squares; as it is where there are too few to draw one.

    Args:
        window: One row, one column an iteration; NaN where there was none.
    """
    columns = np.flatnonzero(np.isfinite(window[0]))
    if len(columns) < _FEWEST:
        return window
    values = window[0, columns]
    place = columns - columns.mean()
    slope = float(place @ values) / float(place @ place)
    found = window.copy()
    found[0, columns] = values - values.mean() - slope * place
    return found
