"""Where the healthy peers of each row stand: what slows all of them accuses none."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def centres_of_peers(values: Floats, healthy: Bools) -> Floats:
    """The lower median of the healthy others of each row, the row itself left out.

    The lower one of two middle values, because illness only slows: a peer that is ill and not yet known to be is the
    higher one.

    Args:
        values: One a row, in the last axis; NaN where nothing was observed. Other axes are tables of their own.
        healthy: Rows that may be compared with; of the same shape, or one that is broadcast to it.

    Returns:
        One a row; NaN for a row that has no healthy peer.
    """
    known = healthy & np.isfinite(values)
    ordered = np.sort(np.where(known, values, np.inf), axis=-1)
    count = known.sum(axis=-1, keepdims=True)

    def at(place: Ints) -> Floats:
        found: Floats = np.take_along_axis(ordered, np.clip(place, 0, values.shape[-1] - 1), axis=-1)
        return found

    middle = (count - 2) // 2
    lower = at(middle)
    # Others of a row that is not among them are all of them.
    centres = np.where(known, np.where(values <= lower, at(middle + 1), lower), at((count - 1) // 2))
    return np.where(count - known > 0, centres, np.nan)
