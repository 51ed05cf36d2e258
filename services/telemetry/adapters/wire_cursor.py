"""Reads the same protobuf message out of many buffers at once: one step a field instead of one a field and message.

Works on what protobuf writes: fields in ascending order, each at most once, but for repeated ones. Whoever reads asks
for the fields in that order. A message in which anything else lies is not *plain*: its values mean nothing, and
somebody who knows more must read it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_PADDING = b"\0" * 16
_LARGEST_INT32 = (1 << 31) - 1
_VARINT, _DOUBLE, _DELIMITED = 0, 1, 2
_ENDS = np.array([0x80 << 8 * index for index in range(8)], dtype=np.uint64)


class WireCursor:
    """Where reading stands in each of many messages.

    Attributes:
        plain: False for the messages that hold something else than was asked for.
    """

    def __init__(self, raws: Sequence[bytes]) -> None:
        buffer = b"".join([*raws, _PADDING])
        self._bytes = np.frombuffer(buffer, dtype=np.uint8)
        # The number that begins at each byte, aligned or not.
        size = len(buffer) - 7
        self._words = np.ndarray((size,), dtype="<u8", buffer=buffer, strides=(1,))
        self._doubles = np.ndarray((size,), dtype="<f8", buffer=buffer, strides=(1,))
        lengths = np.fromiter(map(len, raws), dtype=np.int64, count=len(raws))
        self._stops = np.cumsum(lengths)
        self._at = self._stops - lengths
        self._begins = self._at
        self.plain: Bools = np.ones(len(raws), dtype=np.bool_)

    def doubles(self, field: int) -> Floats:
        """A double; 0 where it is left out."""
        here = self._here(field, _DOUBLE)
        found: Floats = np.where(here, self._doubles[np.where(here, self._at + 1, 0)], 0.0)
        self._at = self._at + 9 * here
        return found

    def here(self, field: int) -> Bools:
        """Where a double comes next that may be left out: asked for before it is read."""
        return self._here(field, _DOUBLE)

    def int32s(self, field: int) -> Ints:
        """An int32 or an enum that is not negative; 0 where it is left out."""
        found = self.int64s(field)
        self.plain &= found <= _LARGEST_INT32
        return found

    def int64s(self, field: int) -> Ints:
        """An integer from 0 to 2^56; 0 where it is left out."""
        here = self._here(field, _VARINT)
        if not here.any():
            return np.zeros(len(here), dtype=np.int64)
        found, width = self._varints(np.where(here, self._at + 1, len(self._words) - 1))
        self._at = self._at + np.where(here, width + 1, 0)
        return np.where(here, found, 0)

    def enter(self, field: int) -> tuple[Ints, Bools]:
        """Steps into a submessage where there is one; to be followed by :meth:`leave` with what this returns."""
        here = self._here(field, _DELIMITED)
        length, width = self._varints(np.where(here, self._at + 1, len(self._words) - 1))
        self._at = self._at + np.where(here, width + 1, 0)
        outer = self._stops
        inner = np.where(here, self._at + length, self._at)
        self.plain &= ~here | (inner <= outer)
        self._stops = np.minimum(inner, outer)  # nobody may be sent beyond the buffer
        return outer, here

    def leave(self, entered: tuple[Ints, Bools]) -> None:
        """Ends a submessage, which must have been read to its end."""
        outer, here = entered
        self.plain &= ~here | (self._at == self._stops)
        self._stops = outer

    def spans(self, field: int, *, most: int) -> tuple[Ints, Ints]:
        """Begin and end, in each message, of all occurrences of a repeated submessage, tags included; they are skipped.

        Args:
            field: Its number.
            most: A message with more of them is not plain.
        """
        begins = self._at.copy()
        rows = np.flatnonzero(self._here(field, _DELIMITED))
        tag, at = field << 3 | _DELIMITED, self._at.copy()
        for _ in range(most):
            if not len(rows):
                break
            length, width = self._varints(at[rows] + 1)
            at[rows] = np.minimum(at[rows] + 1 + width + length, self._stops[rows] + 1)
            more = (at[rows] < self._stops[rows]) & (self._bytes[np.minimum(at[rows], len(self._bytes) - 1)] == tag)
            rows = rows[more]
        self.plain[rows] = False
        self.plain &= at <= self._stops
        self._at = np.minimum(at, self._stops)
        return begins - self._begins, self._at - self._begins

    def end(self) -> None:
        """Nothing may be left."""
        self.plain &= self._at == self._stops

    def _here(self, field: int, kind: int) -> Bools:
        found: Bools = (self._at < self._stops) & (self._bytes[self._at] == (field << 3 | kind))
        return found

    def _varints(self, places: Ints) -> tuple[Ints, Ints]:
        """The integers that begin at some places, and how many bytes they take; longer ones than 8 are not plain."""
        words = self._words[places]
        ends = ~words & np.uint64(0x8080808080808080)
        lowest = ends & (~ends + np.uint64(1))
        if len(places) == len(self.plain):
            self.plain &= ends != 0
        words &= lowest | (lowest - np.uint64(1))
        words = words & np.uint64(0x007F007F007F007F) | (words & np.uint64(0x7F007F007F007F00)) >> np.uint64(1)
        words = words & np.uint64(0x00003FFF00003FFF) | (words & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
        words = words & np.uint64(0x000000000FFFFFFF) | (words & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
        return words.astype(np.int64), np.searchsorted(_ENDS, lowest) + 1
