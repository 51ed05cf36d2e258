"""How much slower, and since when, once a window has crossed."""

import math
from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Floats

ERRORS = 3.1
"""Standard errors by which a mean must be off to be another."""

INTERVAL = 1.96
"""Standard errors of half a 95 % interval."""

SHORTEST = 4
"""Frames that say where an ill row stands now, at least."""

_MOST_DOUBLINGS = 4
_WINSORISED_AT = 3.0
_SHARE_OF_SHIFT = 0.6


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

    def least(self, scale: float) -> float:
        """What it is at least, where single frames scatter by so much or by what these do."""
        return self.level - ERRORS * max(scale, self.scatter) / math.sqrt(self.num_frames)


def stay_of(num_changes: int) -> int:
    """Frames that a row which has come and gone so often must stay elsewhere: twice as many each time."""
    return SHORTEST << min(num_changes, _MOST_DOUBLINGS)


def level_of(residuals: Floats) -> Level:
    """The log of the mean time of some frames, of which lone ones far from the others count as little more than those.

    Args:
        residuals: Of one row, oldest first; NaN where nothing was observed, at least one that is not.
    """
    known = residuals[np.isfinite(residuals)]
    scatter = math.sqrt(float(np.mean(np.diff(known) ** 2)) / 2) if len(known) > 1 else 0.0
    middle, reach = float(np.median(known)), _WINSORISED_AT * scatter
    mean = math.log(float(np.mean(np.exp(np.clip(known, middle - reach, middle + reach)))))
    return Level(level=mean, scatter=scatter, num_frames=len(residuals))


def level_since_onset(residuals: Floats, *, middle: float) -> Level:
    """The level since the likeliest onset within some frames.

    Of all stretches that end now the onset begins the one that speaks most for a shift from 0 to about ``middle``: a
    frame near that speaks for it, one that is nearer to 0 against it (Page, Biometrika 41, 1954). No frame speaks more
    than another, so a lone one far off just before the onset is not taken for it.

    Args:
        residuals: Of the newest frames of one row, oldest first; NaN where nothing was observed.
        middle: Where the newest of them stand, above 0.
    """
    places = np.flatnonzero(np.isfinite(residuals))[::-1]
    gains = np.cumsum(np.clip(residuals[places], -middle, middle) - _SHARE_OF_SHIFT * middle)
    return level_of(residuals[int(places[int(np.argmax(gains))]) :])


def moved_level(residuals: Floats, *, level: float, scale: float, width: float, smallest: float) -> Level | None:
    """The level of an ill row since it last moved; None where it stands where it did.

    Args:
        residuals: Of the newest frames since it stands there, oldest first; NaN where nothing was observed.
        level: Where it is known to stand.
        scale: Standard deviation of a healthy frame.
        width: How much wider a mean of some frames is than that of independent ones.
        smallest: Steps below this, log units of time, are none.
    """
    apart = residuals - level
    known = apart[np.isfinite(apart)]
    if len(known) < 2 * SHORTEST:
        return None
    # The change itself adds one step to the scatter.
    errors, length = ERRORS * width * max(scale, level_of(known).scatter), SHORTEST
    while length <= len(known):
        shift = float(np.median(known[-length:]))
        if abs(shift) > max(smallest, errors / math.sqrt(length)):
            found = level_since_onset(math.copysign(1.0, shift) * apart, middle=abs(shift))
            if found.num_frames < SHORTEST:
                return None
            return Level(level + math.copysign(found.level, shift), found.scatter, found.num_frames)
        length *= 2
    return None
