"""The newest iterations of a series: how far off they were, from where it stood and from where it had just been."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WINDOW = 128
ROOM = 8 * WINDOW
"""Iterations until the window moves to the front of its memory."""


class SeriesWindow:
    """The newest ``WINDOW`` iterations, oldest first; NaN where there was none. Its arrays may be written to."""

    __slots__ = ("_rows", "_stop")

    def __init__(self) -> None:
        self._rows: Floats = np.full((3, ROOM), np.nan)
        self._stop = WINDOW

    @property
    def residuals(self) -> Floats:
        """Distance from where the series stands, log units of time."""
        return self._rows[0, self._stop - WINDOW : self._stop]

    @property
    def scatter(self) -> Floats:
        """Distance from where the series just was: noise is estimated from it while the job is slow, too."""
        return self._rows[1, self._stop - WINDOW : self._stop]

    @property
    def iterations(self) -> Floats:
        """Their numbers."""
        return self._rows[2, self._stop - WINDOW : self._stop]

    def push(self, iteration: int, residual: float, scatter: float) -> None:
        """Takes the next one; the oldest is forgotten."""
        if self._stop == ROOM:
            self._rows[:, :WINDOW] = self._rows[:, -WINDOW:]
            self._stop = WINDOW
        self._rows[:, self._stop] = residual, scatter, iteration
        self._stop += 1

    def stands_higher(self, level: float) -> None:
        """The series stands ``level`` higher than thought, log units of time."""
        self._rows[0] -= level
