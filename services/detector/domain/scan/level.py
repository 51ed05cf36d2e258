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

_FEWEST_MEANS = 8
_MOST_DOUBLINGS = 4
_WINSORISED_AT = 3.0
_SHARE_OF_SHIFT = 0.6


@dataclass(frozen=True, slots=True)
class Level:
    """Where a row stands.

    Attributes:
        level: How much slower than healthy in the mean, log units of time.
        num_frames: Frames that it rests on.
    """

    level: float
    num_frames: int


def stay_of(num_changes: int) -> int:
    """Frames that a row which has come and gone so often must stay elsewhere: twice as many each time."""
    return SHORTEST << min(num_changes, _MOST_DOUBLINGS)


def scatter_of(residuals: Floats) -> float:
    """Standard deviation of one frame, by the steps between neighbours: a change of level is one step only.

    Where neighbours are alike, it is what the means of some scatter by, as if they were of independent frames.

    Args:
        residuals: Of one row, oldest first; NaN where nothing was observed.
    """
    known = residuals[np.isfinite(residuals)]
    if len(known) < 2:
        return 0.0
    means = known[len(known) % SHORTEST :].reshape(-1, SHORTEST).mean(axis=1)
    alike = 1.4826 * float(np.median(np.abs(np.diff(means)))) if len(means) >= _FEWEST_MEANS else 0.0
    return math.sqrt(max(float(np.mean(np.diff(known) ** 2)), SHORTEST * alike**2) / 2)


def level_of(residuals: Floats) -> Level:
    """The log of the mean time of some frames, of which lone ones far from the others count as little more than those.

    Args:
        residuals: Of one row, oldest first; NaN where nothing was observed, at least one that is not.
    """
    known = residuals[np.isfinite(residuals)]
    middle, reach = float(np.median(known)), _WINSORISED_AT * scatter_of(known)
    mean = math.log(float(np.mean(np.exp(np.clip(known, middle - reach, middle + reach)))))
    return Level(level=mean, num_frames=len(residuals))


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


def moved_level(residuals: Floats, *, level: float, scale: float, smallest: float) -> Level | None:
    """The level of an ill row since it last moved; None where it stands where it did.

    Args:
        residuals: Of the newest frames since it stands there, oldest first; NaN where nothing was observed.
        level: Where it is known to stand.
        scale: Standard deviation of a frame, as if all were independent.
        smallest: Steps below this, log units of time, are none.
    """
    apart = residuals - level
    known = apart[np.isfinite(apart)]
    if len(known) < 2 * SHORTEST:
        return None
    errors, length = ERRORS * scale, SHORTEST
    while length <= len(known):
        shift = level_of(known[-length:]).level
        if abs(shift) > max(smallest, errors / math.sqrt(length)):
            found = level_since_onset(math.copysign(1.0, shift) * apart, middle=abs(shift))
            stretch = np.clip(apart[-found.num_frames :] / shift, -1.0, 1.0)
            if found.num_frames < SHORTEST or np.nanmean(stretch) <= _SHARE_OF_SHIFT:  # as much is back where it was
                return None
            return Level(level + math.copysign(found.level, shift), found.num_frames)
        length *= 2
    return None
