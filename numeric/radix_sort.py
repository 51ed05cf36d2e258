"""Sorts a few hundred to some ten thousand numbers inside compiled code, where numba's own sort is slow."""

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled

Singles = npt.NDArray[np.float32]

_SIGN = 0x80000000
_DIGITS, _VALUES = 4, 256


@compiled
def radix_sorted(values: Singles) -> Singles:
    """The numbers of a row, ascending; those that are none stand at either end, by their sign.

    A byte at a time, the last one first: there is no comparison whose outcome a processor could guess wrong, which is
    most of what a quicksort of random numbers takes (384 numbers: 3 us instead of 16). It takes time in proportion to
    how many there are.

    Args:
        values: Side by side in memory; they stay as they are.
    """
    keys, moved = np.empty(len(values), dtype=np.uint32), np.empty(len(values), dtype=np.uint32)
    places = np.zeros((_DIGITS, _VALUES), dtype=np.int32)
    bits = values.view(np.uint32)
    for at in range(len(values)):
        bit = bits[at]
        # Ascending as whole numbers: below zero all bits are turned round, else the sign alone.
        key = np.uint32(bit ^ (-(bit >> 31) | _SIGN))
        keys[at] = key
        for digit in range(_DIGITS):
            places[digit, (key >> (8 * digit)) & 255] += 1
    for digit in range(_DIGITS):
        begin = 0
        for value in range(_VALUES):
            count = places[digit, value]
            places[digit, value] = begin
            begin += count
        for at in range(len(keys)):
            key = keys[at]
            value = (key >> (8 * digit)) & 255
            moved[places[digit, value]] = key
            places[digit, value] += 1
        keys, moved = moved, keys
    for at in range(len(keys)):
        key = keys[at]
        keys[at] = key ^ (((key >> 31) - 1) | _SIGN)
    return keys.view(np.float32)
