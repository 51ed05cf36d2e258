"""Numbers for byte strings that come again and again: thousands are looked up in one compiled step."""

import os
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Bytes, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.adapters.wire_scan import hash_of, same_bytes

_NOBODY = np.empty(0, dtype=np.int64)


@cache
def _salt() -> int:
    """Nobody who sends bytes knows it: nobody can choose strings that all lie in one place of the table.

    No number of the module: machine code is kept for as long as those are the same, and this one never is.
    """
    return int.from_bytes(os.urandom(7))


class ByteTable:
    """Byte strings by number, from 0 in the order in which they were added."""

    def __init__(self) -> None:
        """Starts with none."""
        self._store: Bytes = np.zeros(4096, dtype=np.uint8)
        self._bounds: Ints = np.zeros((64, 2), dtype=np.int64)
        self._cells: Ints = np.full(256, -1, dtype=np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def find(self, wire: Bytes, begins: Ints, ends: Ints) -> Ints:
        """Number of each of the strings in a buffer; -1 for those that are not here."""
        found = np.empty(len(begins), dtype=np.int64)
        begins, ends = np.ascontiguousarray(begins), np.ascontiguousarray(ends)
        _look_up(wire, begins, ends, self._store, self._bounds, self._cells, _salt(), found, _NOBODY)
        return found

    def add(self, raw: bytes) -> int:
        """The number of one more string, which must not be here yet."""
        number, begin = self._size, int(self._bounds[self._size - 1, 1]) if self._size else 0
        end = begin + len(raw)
        self._store = _with_room(self._store, end)
        self._bounds = _with_room(self._bounds, number + 1)
        self._store[begin:end] = np.frombuffer(raw, dtype=np.uint8)
        self._bounds[number] = begin, end
        self._size += 1
        if 2 * self._size > len(self._cells):
            self._cells = np.full(4 * len(self._cells), -1, dtype=np.int64)
            number = 0
        _put(self._store, self._bounds[: self._size], self._cells, _salt(), number)
        return self._size - 1


def distinct(wire: Bytes, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Which of the distinct strings of a buffer each one is, numbered as they come, and where each comes first."""
    size, begins, ends = len(begins), np.ascontiguousarray(begins), np.ascontiguousarray(ends)
    which, firsts = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    bounds = np.empty((size, 2), dtype=np.int64)
    cells = np.full(1 << (2 * size + 2).bit_length(), -1, dtype=np.int64)
    count = _look_up(wire, begins, ends, wire, bounds, cells, _salt(), which, firsts)
    return which, firsts[:count]


def same_strings(one: Bytes, spans: Ints, other: Bytes, others: Ints) -> Bools:
    """Whether each string of one buffer is that of another: one row a string, its begin and its end."""
    same = np.empty(len(spans), dtype=np.bool_)
    _compare(one, np.ascontiguousarray(spans), other, np.ascontiguousarray(others), same)
    return same


def _with_room(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The array, with at least ``size`` rows."""
    if size <= len(array):
        return array
    larger = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


@compiled
def _look_up(
    wire: Bytes,
    begins: Ints,
    ends: Ints,
    store: Bytes,
    bounds: Ints,
    cells: Ints,
    salt: int,
    numbers: Ints,
    firsts: Ints,
) -> int:
    """Finds strings of ``wire`` among those that have numbers.

    Args:
        wire: Where they are.
        begins: First byte of each.
        ends: Behind its last byte.
        store: Where the strings are that have numbers.
        bounds: Begin and end of each of those.
        cells: Their numbers by hash, -1 in empty ones; a power of two of them.
        salt: Of the hashes.
        numbers: Filled: the number of each; -1 = it has none.
        firsts: Rows of those that came first: with room for all, a string without a number gets the next one, which
            needs ``store`` to be ``wire``; with none, nobody does.

    Returns:
        How many were given numbers.
    """
    mask, count, gives = len(cells) - 1, 0, len(firsts) > 0
    for row in range(len(begins)):
        begin, size = begins[row], ends[row] - begins[row]
        cell = hash_of(wire, begin, ends[row], salt) & mask
        while True:
            number = cells[cell]
            if number < 0:
                if gives:
                    number = cells[cell] = count
                    firsts[count], bounds[count, 0], bounds[count, 1] = row, begin, ends[row]
                    count += 1
                break
            at = bounds[number, 0]
            if bounds[number, 1] - at == size and same_bytes(wire, begin, store, at, size):
                break
            cell = (cell + 1) & mask
        numbers[row] = number
    return count


@compiled
def _put(store: Bytes, bounds: Ints, cells: Ints, salt: int, first: int) -> None:
    """Gives the strings from a number on, of which none is there, their cells."""
    mask = len(cells) - 1
    for number in range(first, len(bounds)):
        cell = hash_of(store, bounds[number, 0], bounds[number, 1], salt) & mask
        while cells[cell] >= 0:
            cell = (cell + 1) & mask
        cells[cell] = number


@compiled
def _compare(one: Bytes, spans: Ints, other: Bytes, others: Ints, same: Bools) -> None:
    for row in range(len(spans)):
        begin, size = spans[row, 0], spans[row, 1] - spans[row, 0]
        at = others[row, 0]
        same[row] = at >= 0 and others[row, 1] - at == size and same_bytes(one, begin, other, at, size)
