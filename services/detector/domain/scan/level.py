"""How much slower, and since when, once a window has crossed."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


_WINSORISED_AT = 4.0


@dataclass(frozen=True, slots=True)
class Level:
    """Where a row stands.

    Attributes:
        level: How much slower than healthy in the mean, log units of time.
        scatter: Standard deviation of one frame about it, by the steps between neighbours.
        num_frames: Frames that it rests on.
    """

    level: float
    scatter: float
    num_frames: int


def level_of(residuals: Floats) -> Level:
    """The mean of some frames, of which lone ones far from the others count as little more than those.

    Args:
        residuals: Of one row, oldest first; NaN where nothing was observed, at least one that is not.
    """
    known = residuals[np.isfinite(residuals)]
    scatter = math.sqrt(float(np.mean(np.diff(known) ** 2)) / 2) if len(known) > 1 else 0.0
    middle, reach = float(np.median(known)), _WINSORISED_AT * scatter
    mean = float(np.mean(np.clip(known, middle - reach, middle + reach)))
    return Level(level=mean, scatter=scatter, num_frames=len(residuals))


def level_since_onset(residuals: Floats, *, scale: float, clip: float) -> Level:
    """The level since the likeliest onset within some frames.

    Of all stretches that end now the onset begins the one that speaks most against healthy noise: the mean of most
    standard errors (Hinkley, Biometrika 57, 1970, for a known level before).

    Args:
        residuals: Of the newest frames of one row, oldest first; NaN where nothing was observed.
        scale: Standard deviation of one.
        clip: Scales that a frame counts at most.
    """
    places = np.flatnonzero(np.isfinite(residuals))[::-1]
    sums = np.cumsum(np.clip(residuals[places] / scale, -clip, clip))
    most = int(np.argmax(sums / np.sqrt(np.arange(1, len(sums) + 1))))
    return level_of(residuals[int(places[most]) :])
