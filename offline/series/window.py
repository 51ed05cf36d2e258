"""The newest iterations of a series: how far off they were, from where it stood and from where it had just been."""

import numpy as np

from evenkeel.numeric.arrays import Floats

WINDOW = 128


class SeriesWindow:
    """The newest ``WINDOW`` iterations, oldest first; NaN where there was none. Its arrays may be written to.

    Attributes:
        residuals: Distance from where the series stands, log units of time.
        scatter: Distance from where the series just was: noise is estimated from it while the job is slow, too.
        iterations: Their numbers.
    """

    def __init__(self) -> None:
        self.residuals: Floats = np.full(WINDOW, np.nan)
        self.scatter: Floats = np.full(WINDOW, np.nan)
        self.iterations: Floats = np.full(WINDOW, np.nan)

    def push(self, iteration: int, residual: float, scatter: float) -> None:
        """Takes the next one; the oldest is forgotten."""
        for column, newest in ((self.residuals, residual), (self.scatter, scatter), (self.iterations, iteration)):
            column[:-1] = column[1:]
            column[-1] = newest
