"""Where the healthy peers of each row stand: what slows all of them accuses none."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def centres_of_peers(values: Floats, healthy: Bools) -> Floats:
    """The lower median of the healthy others of each row, the row itself left out.

    The lower one of two middle values, because illness only slows: a peer that is ill and not yet known to be is the
    higher one.

    Args:
        values: One a row, NaN where nothing was observed.
        healthy: Rows that may be compared with.

    Returns:
        One a row; NaN for a row that has no healthy peer.
    """
    centres: Floats = np.full(len(values), np.nan)
    rows = np.flatnonzero(healthy & np.isfinite(values))
    if not len(rows):
        return centres
    order = np.argsort(values[rows], kind="stable")
    ordered = values[rows][order]
    # Others of a row that is not among them are all of them.
    centres[:] = ordered[(len(rows) - 1) // 2]
    if len(rows) == 1:
        centres[rows] = np.nan
        return centres
    middle = (len(rows) - 2) // 2
    places = np.empty(len(rows), dtype=np.int64)
    places[order] = np.arange(len(rows))
    centres[rows] = np.where(places <= middle, ordered[middle + 1], ordered[middle])
    return centres
