"""The farthest that healthy devices of a job strayed of late: spells in which noise is larger, or a device is slower.

Mean squares say little of noise that comes in spells: most of the time it is quiet. What was seen of it is what may
come again, so what is about to be told must be well beyond that.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.strays import LENGTHS, without_outliers

Floats = npt.NDArray[np.float64]

_REMEMBERED_ITERATIONS = 4096.0
_BEYOND = 2.0
# In usual scales of outliers: a spell of some iterations is no lone one.
_OUTLYING = 3.0


@dataclass(slots=True, eq=False)
class Excursions:
    """The farthest means over ``LENGTHS`` iterations in a row; they fade, as spells may end for good."""

    _farthest: Floats = field(default_factory=lambda: np.zeros(len(LENGTHS)))

    def remember(self, residuals: Floats, *, scale: float, num_new: int) -> None:
        """Takes the oldest of some windows, as :meth:`Strays.remember` does, and with the same arguments."""
        self._farthest *= 1.0 - num_new / _REMEMBERED_ITERATIONS
        if not len(residuals):
            return
        old = without_outliers(residuals[:, : LENGTHS[-1] + num_new - 1], _OUTLYING * scale)
        for index, length in enumerate(LENGTHS):
            spells = np.lib.stride_tricks.sliding_window_view(old[:, : length + num_new - 1], length, axis=1)
            means = np.abs(spells.mean(axis=-1))
            self._farthest[index] = max(self._farthest[index], float(means[np.isfinite(means)].max(initial=0.0)))

    def reach(self, length: int) -> float:
        """How far off the mean of a healthy device over so many iterations in a row may be."""
        index = max(int(np.searchsorted(LENGTHS, length, side="right")) - 1, 0)
        # A mean over fewer iterations may be one outlier's.
        return _BEYOND * float(self._farthest[index]) * max(LENGTHS[0] / length, 1.0)
