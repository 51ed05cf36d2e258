"""Tables of one row a clock and one column a device: empty ones, wider ones, and what lies in the middle of several."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats, Ints

Number = TypeVar("Number", bound=np.generic)


def no_floats() -> Floats:
    """An empty one of numbers."""
    return np.zeros((0, 0))


def no_ints() -> Ints:
    """An empty one of counts."""
    return np.zeros((0, 0), dtype=np.int64)


def no_bools() -> Bools:
    """An empty one of flags."""
    return np.zeros((0, 0), dtype=np.bool_)


def median(values: Floats) -> Floats:
    """Over the first axis, without what is not there; NaN where nothing is."""
    ordered = np.sort(values, axis=0)
    count = np.isfinite(ordered).sum(axis=0)
    lower, upper = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(ordered) - 1)
    found = (np.take_along_axis(ordered, lower[None], 0)[0] + np.take_along_axis(ordered, upper[None], 0)[0]) / 2
    return np.where(count > 0, found, np.nan)


def mean(values: Floats) -> Floats:
    """The same for the mean."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    found: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


def arranged(table: npt.NDArray[Number], columns: Ints, value: float) -> npt.NDArray[Number]:
    """A table of these columns, which are its last axis; -1 is a new one, of which each number is ``value``."""
    fresh = np.full((*table.shape[:-1], 1), value, dtype=table.dtype)
    return np.take(np.concatenate([table, fresh], axis=-1), columns, axis=-1)


def more(count: int, num_more: int) -> Ints:
    """Columns of a table of ``count``, and so many new ones."""
    return np.append(np.arange(count), np.full(num_more, -1, dtype=np.int64))
