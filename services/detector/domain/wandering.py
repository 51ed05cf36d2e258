"""Could what a device shows be noise that wanders?

The tests' evidence holds for noise that is forgotten as fast as it was seen to be. What is remembered of healthy
devices knows how noise hangs together, in whatever way. A job of few ranks has few peers to tell noise from illness by:
its noise is looked at more closely, and then its windows need not be feared so much.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.excursions import Excursions
from evenkeel.services.detector.domain.lingering import Lingering
from evenkeel.services.detector.domain.noise import Noise
from evenkeel.services.detector.domain.strays import Strays

Floats = npt.NDArray[np.float64]

_STRAYS, _STRAYS_OF_YOUTH = 5.0, 1.0


@dataclass(slots=True, eq=False)
class Wandering:
    """What is known of how a job's healthy noise hangs together."""

    _strays: Strays = field(default_factory=Strays)
    _closer: tuple[Lingering, Excursions] | None = None

    @property
    def most_alike(self) -> float:
        """Lag-one correlation of the noise, if more is known of it than a window shows; else 1."""
        share = None if self._closer is None else self._closer[0].share
        return 1.0 if share is None else share

    def remember(self, residuals: Floats, *, scale: float, num_new: int, few: bool) -> None:
        """Takes the oldest of some windows: whoever is ill has mostly been found by now, and is not taken for healthy.

        Args:
            residuals: Of devices that are healthy; one row a device, one column an iteration, oldest first; NaN where
                they shall not count.
            scale: Scale of their noise.
            num_new: Iterations since it was last asked for.
            few: The job has few ranks.
        """
        self._strays.remember(residuals, scale=scale, num_new=num_new)
        if few:
            self._closer = self._closer or (Lingering(), Excursions())
            for each in self._closer:
                each.remember(residuals, scale=scale, num_new=num_new)

    def could_be(
        self, level: float, shown: Floats, window: Floats, *, noise: Noise, youth: float, num_settled: int, few: bool
    ) -> bool:
        """Do healthy devices of this job stray as far as ``level`` over as many iterations?

        Args:
            level: Where a device seems to have moved; above 0 speaks for it.
            shown: Its residuals since then, signs alike.
            window: Newest residuals of healthy devices; NaN where they shall not count.
            noise: Their noise.
            youth: 1 for a device that was never seen, 0 for a grown-up one.
            num_settled: Iterations that its offset rests on.
            few: The job has few ranks.
        """
        strays = _STRAYS + _STRAYS_OF_YOUTH * youth
        if not few:
            return level < self._strays.reach(window, len(shown), scale=noise.scale, strays=strays)
        lingering, excursions = self._closer or (Lingering(), Excursions())
        reach = self._strays.reach(
            window,
            len(shown),
            scale=noise.scale,
            strays=strays,
            # The offset that the level is seen from is a mean of the same noise.
            least=math.hypot(lingering.spread_of_means(len(shown)), lingering.spread_of_means(num_settled)),
            share=lingering.share or 0.0,
        )
        if level < reach:
            return True
        return level < excursions.reach(len(shown)) or lingering.could_explain(shown, noise=noise, strays=strays)
