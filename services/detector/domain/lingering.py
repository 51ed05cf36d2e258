"""How much of a residual is left in the next one, over some 1,000 iterations of healthy devices.

A window of residuals is too short to tell noise that lingers from noise that does not where a job has few ranks. What
lingers is no illness: a jump that fades shows nothing anew in the iterations after it, a slow device does.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.autoregression import spread_of_means
from evenkeel.services.detector.domain.level import robust_level
from evenkeel.services.detector.domain.noise import Noise
from evenkeel.services.detector.domain.strays import REMEMBERED_ITERATIONS, without_outliers

Floats = npt.NDArray[np.float64]

_FEWEST_PAIRS = 32.0
_MOST, _DOUBT = 0.98, 1.0
# Before that is known, noise may linger as much as this, and be so much larger than it seems.
_MOST_LIKELY, _LARGER = 0.85, 1.5


@dataclass(slots=True, eq=False)
class Lingering:
    """Mean products of neighbouring residuals, mean squares of both, and how many they rest on."""

    _products: float = 0.0
    _squares: float = 0.0
    _count: float = 0.0

    def remember(self, residuals: Floats, *, scale: float, num_new: int) -> None:
        """Takes the oldest of some windows, as :meth:`Strays.remember` does, and with the same arguments."""
        # Two rows are each other's mirror image.
        weight = 0.5 if len(residuals) == 2 else 1.0
        old = without_outliers(residuals[:, : num_new + 1], scale)
        before, after = old[:, :-1], old[:, 1:]
        # Whoever is the centre of the frame shows nothing.
        pairs = np.isfinite(before * after) & (before != 0.0) & (after != 0.0)
        before, after = before[pairs], after[pairs]
        kept = 1.0 - num_new / REMEMBERED_ITERATIONS
        self._products = kept * self._products + weight * float(np.sum(before * after))
        self._squares = kept * self._squares + weight * float(np.sum(before**2 + after**2)) / 2
        self._count = kept * self._count + weight * len(before)

    @property
    def share(self) -> float | None:
        """Of a residual, what is left in the next one: the lag-one correlation; None while too little is known."""
        found = self._likeliest()
        # While there are few pairs, it may be more than it looks.
        return None if found is None else min(found + _DOUBT * ((1 - found**2) / self._count) ** 0.5, _MOST)

    def spread_of_means(self, length: int) -> float:
        """Standard deviation of means over so many iterations in a row; 0 while too little is known."""
        share = self._likeliest()
        return 0.0 if share is None else (self._squares / self._count) ** 0.5 * spread_of_means(share, length)

    def _likeliest(self) -> float | None:
        if self._count < _FEWEST_PAIRS or self._squares <= 0.0:
            return None
        found = self._products / self._squares
        # A series makes noise look less alike than it is (Marriott and Pope 1954).
        return float(min(max(found + (1.0 + 4 * found) / self._count, 0.0), _MOST))

    def could_explain(self, shown: Floats, *, noise: Noise, strays: float) -> bool:
        """Do some residuals in a row show nothing that is more than what lingers of the ones before?

        Under noise of this kind each residual is a share of the one before and something new, whose level is 0; that
        of a device which became slow is not. The first one says nothing: it may be a jump.

        Args:
            shown: Residuals since the change, oldest first, all finite; above 0 speaks for it.
            noise: Noise of the job as its windows show it.
            strays: How far healthy noise may be off, in standard deviations.
        """
        share = self.share
        if share is None:
            share = max(noise.correlation, _MOST_LIKELY)
            size = _LARGER * noise.scale * ((1 - noise.correlation) / (1 + noise.correlation)) ** 0.5
        else:
            size = float(np.sqrt(self._squares / self._count))
        new = shown[1:] - share * shown[:-1]
        reach = strays * size * (1 - share**2) ** 0.5
        return len(new) == 0 or robust_level(new) * len(new) ** 0.5 < reach
