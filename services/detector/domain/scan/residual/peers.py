"""Where the healthy peers of each row stand: what slows all of them accuses none."""

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.scan.residual.tables import median

LARGEST_DRIFT = 0.03
"""How far a row may come to stand from where it was, log units of time, and still be called healthy."""

_SCALES_UNMOVED = 4.0


def centres_of_peers(values: Floats, healthy: Bools, reach: Floats | float = 0.0) -> Floats:
    """The mean of the healthy others of each row, the row itself left out, those far off counted at arm's length.

    Far off is what is farther than ``reach`` from their lower median. The lower one of two middle values, because
    illness only slows: a peer that is ill and not yet known to be is the higher one. Of no reach it is that median.

    Args:
        values: One a row, in the last axis; NaN where nothing was observed. Other axes are tables of their own.
        healthy: Rows that may be compared with; of the same shape, or one that is broadcast to it.
        reach: Not negative; of a shape that is broadcast to that of the values.

    Returns:
        One a row; NaN for a row that has no healthy peer.
    """
    known = healthy & np.isfinite(values)
    ordered = np.sort(np.where(known, values, np.inf), axis=-1)
    count = known.sum(axis=-1, keepdims=True)

    def at(place: Ints) -> Floats:
        found: Floats = np.take_along_axis(ordered, np.clip(place, 0, values.shape[-1] - 1), axis=-1)
        return found

    def around(middle: Floats) -> Floats:
        apart = np.where(known, np.clip(values - middle, -reach, reach), 0.0)
        found: Floats = middle + (apart.sum(axis=-1, keepdims=True) - apart) / np.maximum(count - known, 1)
        return found

    lower = at((count - 2) // 2)
    # Others of a row that is not among them are all of them.
    others = np.where(values <= lower, around(at(count // 2)), around(lower))
    centres = np.where(known, others, around(at((count - 1) // 2)))
    return np.where(count - known > 0, centres, np.nan)


def unmoved_centres(own: Floats, *, centres: Floats, usual: Floats, healthy: Bools, scales: Floats) -> Floats:
    """Centres of a frame: where most are slower than usual and a quarter is not, it is they who are healthy.

    Args:
        own: Where each row stands, one row a clock, one column a device.
        centres: Where its peers stand.
        usual: Where they usually stand.
        healthy: Rows that may be compared with.
        scales: Of each row's noise in one frame.
    """
    usual = np.median(usual, axis=1, keepdims=True)
    reach = _SCALES_UNMOVED * np.median(scales, axis=1, keepdims=True)
    unmoved = healthy & (np.abs(own - usual) < reach)
    count, fewest = unmoved.sum(axis=1, keepdims=True), np.maximum(healthy.sum(axis=1, keepdims=True) // 4, 2)
    middle = median(np.where(unmoved, own, np.nan).T)[:, None]
    have_moved = (centres > usual + reach + LARGEST_DRIFT) & (count >= fewest)
    return np.where(have_moved, middle, centres)


def standing_apart(offsets: Floats, groups: Floats, settled: Bools) -> Floats:
    """How far each offset is from those of the settled others of its group; 0 of one that is not settled itself."""
    found = np.zeros(offsets.shape)
    for group in np.unique(groups):
        members = (groups == group) & settled
        found = np.where(members, offsets - centres_of_peers(offsets, members), found)
    return found
