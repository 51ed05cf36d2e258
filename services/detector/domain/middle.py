"""Medians of one row of numbers: numpy's, to the bit, at a fraction of its cost for the few numbers of a frame."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


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


class RecentValues:
    """The newest so many numbers of a stream, with their median at hand.

    Args:
        most: How many are kept.
        values: The first ones, oldest first; none may be NaN.
    """

    def __init__(self, most: int, values: Iterable[float] = ()) -> None:
        self._most = most
        # Arrays of doubles: a list's float is an object of its own.
        self._values = array("d", values)
        self._ordered = array("d", sorted(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values)

    def append(self, value: float) -> None:
        """Takes the next number; the oldest one goes where there are too many."""
        if len(self._values) == self._most:
            del self._ordered[bisect_left(self._ordered, self._values.pop(0))]
        self._values.append(value)
        insort(self._ordered, value)

    def clear(self) -> None:
        """Forgets all."""
        del self._values[:], self._ordered[:]

    @property
    def median(self) -> float:
        """Of at least one."""
        ordered, half = self._ordered, len(self._ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0

    @property
    def median_distance(self) -> float:
        """Median of the distances from the median."""
        middle, half = self.median, len(self._ordered) // 2
        apart = sorted([abs(value - middle) for value in self._ordered])
        return apart[half] if len(apart) % 2 else (apart[half - 1] + apart[half]) / 2.0
