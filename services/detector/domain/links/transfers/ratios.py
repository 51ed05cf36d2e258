"""From the operations of an iteration to one figure for each link and group."""

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.links.transfers.times import Transfers

_QUICK = 0.2


def log_ratios_of(transfers: Transfers, expected: Floats, usable: Bools) -> tuple[Floats, Floats]:
    """Log of measured over expected seconds of each tie, and the expected seconds of one of its operations.

    In each direction one of the quick operations counts (the second of ten, by expected seconds), because what disturbs
    one only adds to it; then both directions together, so that an error in the alignment of two clocks, which adds to
    one what it takes from the other, cancels.

    Args:
        transfers: Operations of one iteration.
        expected: What each costs on average in its class, seconds.
        usable: Operations to look at.

    Returns:
        One value for each tie; the ratio is NaN where it cannot be known.
    """
    num_ties = len(transfers.ties)
    segments = 2 * transfers.tie_of + transfers.upward
    quick, weights = np.full((2, 2 * num_ties), np.nan)
    which, value, weight = _weighted_quantiles(
        segments[usable], transfers.seconds[usable] / expected[usable], expected[usable]
    )
    quick[which], weights[which] = value, weight
    quick, weights = quick.reshape(num_ties, 2), weights.reshape(num_ties, 2)
    there = np.isfinite(quick)
    enough = np.where(transfers.ties.crossing_pairs, there.all(axis=1), there.any(axis=1))
    total = np.where(there, weights, 0.0).sum(axis=1)
    measured = np.where(there, quick * weights, 0.0).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratios = np.log(np.where(enough, measured / total, np.nan))
    return log_ratios, total / np.maximum(there.sum(axis=1), 1)


def _weighted_quantiles(segments: Ints, values: Floats, weights: Floats) -> tuple[Ints, Floats, Floats]:
    """Segments that occur, a low weighted quantile of their values, and their mean weight."""
    if not len(segments):
        return segments, values, weights
    order = np.lexsort((values, segments))
    segments, values, weights = segments[order], values[order], weights[order]
    which, starts, counts = np.unique(segments, return_index=True, return_counts=True)
    sums = np.cumsum(weights)
    ends = sums[starts + counts - 1]
    before = sums[starts] - weights[starts]
    middle = np.searchsorted(sums, before + (ends - before) * _QUICK)
    middle = np.clip(middle, starts, starts + counts - 1)
    return which, values[middle], (ends - before) / counts
