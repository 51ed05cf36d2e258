"""Steps over protobuf's wire format, compiled: what the scans of records, samples and lists are made of.

They read what protobuf writes: fields in ascending order, each at most once, but for repeated ones, tags of one byte.
A message in which anything else lies is not *plain*: its values mean nothing, and somebody who knows more must read it.
Nothing is ever read outside of a message's own bytes.
"""

import numpy as np

from evenkeel.numeric.arrays import Bytes
from evenkeel.numeric.compiled import compiled

VARINT, DOUBLE, DELIMITED = 0, 1, 2
"""Kinds of fields: the lowest three bits of a tag."""
LARGEST_INT32 = (1 << 31) - 1
NOT_PLAIN = -1
"""Where reading goes on in a message that is not plain."""

_LONGEST_SHIFT = 49


@compiled
def varint(wire: Bytes, at: int, stop: int) -> tuple[int, int]:
    """An integer from 0 to 2^56 - 1 and the place behind it, which is ``NOT_PLAIN`` if it is longer or cut off."""
    value, shift = 0, 0
    while at < stop and shift <= _LONGEST_SHIFT:
        byte = int(wire[at])
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, NOT_PLAIN


@compiled
def delimited(wire: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Begin and end of what has its length before it, at ``at``; both ``NOT_PLAIN`` if it is cut off."""
    length, begin = varint(wire, at, stop)
    if begin == NOT_PLAIN or begin + length > stop:
        return NOT_PLAIN, NOT_PLAIN
    return begin, begin + length


@compiled
def word(wire: Bytes, at: int) -> int:
    """The eight bytes from ``at`` on, as the bits that they are."""
    bits = np.uint64(0)
    for place in range(8):
        bits |= np.uint64(wire[at + place]) << np.uint64(8 * place)
    return bits  # type: ignore[return-value] # a number to mypy


@compiled
def same_bytes(one: Bytes, first: int, other: Bytes, second: int, size: int) -> bool:
    """Whether ``size`` bytes from ``first`` on in one buffer are those from ``second`` on in another."""
    for place in range(size):  # noqa: SIM110 - compiled: a generator would not be
        if one[first + place] != other[second + place]:
            return False
    return True


@compiled
def hash_of(wire: Bytes, begin: int, end: int, salt: int) -> int:
    """A number for some bytes, hardly ever that of others (multiply and shift, eight bytes a step)."""
    mixed = np.uint64(salt + end - begin)
    at = begin
    while at + 8 <= end:
        mixed = (mixed ^ np.uint64(word(wire, at))) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        at += 8
    while at < end:
        mixed = (mixed ^ np.uint64(wire[at])) * np.uint64(0x9E3779B97F4A7C15)
        at += 1
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(0x7FFFFFFFFFFFFFFF))  # type: ignore[return-value] # a number to mypy
