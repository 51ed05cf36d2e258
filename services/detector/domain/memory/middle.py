"""Medians of one row of numbers: numpy's, to the bit, at a fraction of its cost for the few numbers of a frame."""

import numpy as np

from evenkeel.numeric.arrays import Floats


def median(values: Floats) -> float:
    """The median of at least one number; NaN if one of them is."""
    count = len(values)
    half = count // 2
    values = values.copy()
    values.sort()
    last: float = values.item(count - 1)
    if last != last:  # NaN sorts last
        return last
    middle: float = values.item(half)
    return middle if count % 2 else (values.item(half - 1) + middle) / 2.0


def median_distance(values: Floats) -> float:
    """The median of the distances of at least one number from their median."""
    return median(np.abs(values - median(values)))
