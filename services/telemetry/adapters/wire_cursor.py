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
# Most lists are shorter than this.
_ROUNDS_FOR_ALL = 64
_WIDTHS = np.uint64(0x0102030405060708)
_LONGER_THAN_1, _LONGER_THAN_2 = np.uint64(0x80), np.uint64(0x8080)


class Wire:
    """Buffers end to end, and all numbers that may lie in them.

    Attributes:
        buffer: The bytes.
        bytes: As numbers.
        words: The eight bytes from each place on, aligned or not, as one number.
        doubles: The same as a double.
    """

    def __init__(self, raws: Sequence[bytes]) -> None:
        self.buffer = buffer = b"".join([*raws, _PADDING])
        self.bytes = np.frombuffer(buffer, dtype=np.uint8)
        size = len(buffer) - 7
        self.words = np.ndarray((size,), dtype="<u8", buffer=buffer, strides=(1,))
        self.doubles = np.ndarray((size,), dtype="<f8", buffer=buffer, strides=(1,))
        lengths = np.fromiter(map(len, raws), dtype=np.int64, count=len(raws))
        self._ends = np.cumsum(lengths)
        self._lengths = lengths

    def cut(self, begins: Ints, ends: Ints) -> list[bytes]:
        """The bytes from each begin to its end."""
        return [*map(self.buffer.__getitem__, map(slice, begins.tolist(), ends.tolist()))]

    def cursor(self) -> "WireCursor":
        """At the beginning of each buffer."""
        return WireCursor(self, self._ends - self._lengths, self._ends)


class WireCursor:
    """Where reading stands in each of many messages.

    Attributes:
        plain: False for the messages that hold something else than was asked for.
    """

    def __init__(self, wire: "Wire", begins: Ints, ends: Ints) -> None:
        """Stands at the beginning of each message.

        Args:
            wire: Where they are.
            begins: First byte of each.
            ends: Behind its last byte.
        """
        self._buffer, self._bytes, self._words, self._doubles = wire.buffer, wire.bytes, wire.words, wire.doubles
        self._at, self._stops = begins, ends
        self.plain: Bools = np.ones(len(begins), dtype=np.bool_)

    @property
    def at(self) -> Ints:
        """Where reading stands on the wire."""
        return self._at

    def doubles(self, field: int) -> Floats:
        """A double; 0 where it is left out."""
        here = self._here(field, _DOUBLE)
        count = np.count_nonzero(here)
        if not count:
            return np.zeros(len(here))
        if count == len(here):  # as nearly always
            found: Floats = self._doubles[self._at + 1]
            self._at = self._at + 9
            return found
        found = np.where(here, self._doubles[np.where(here, self._at + 1, 0)], 0.0)
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
        count = np.count_nonzero(here)
        if not count:
            return np.zeros(len(here), dtype=np.int64)
        if count == len(here):
            found, width = self._varints(self._at + 1)
            self._at = self._at + 1 + width
            return found
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
        """Begin and end on the wire of all occurrences of a repeated submessage, tags included; they are skipped.

        Args:
            field: Its number.
            most: A message with more of them is not plain.
        """
        begins = self._at.copy()
        rows = np.flatnonzero(self._here(field, _DELIMITED))
        tag, at = field << 3 | _DELIMITED, self._at.copy()
        for _ in range(_ROUNDS_FOR_ALL):
            if not len(rows):
                break
            length, width = self._varints(at[rows] + 1)
            at[rows] = np.minimum(at[rows] + 1 + width + length, self._stops[rows] + 1)
            more = (at[rows] < self._stops[rows]) & (self._bytes[np.minimum(at[rows], len(self._bytes) - 1)] == tag)
            rows = rows[more]
        for row in rows.tolist():  # a long list has no company: it is walked alone
            at[row] = self._skip_alone(int(at[row]), int(self._stops[row]), tag, most=most - _ROUNDS_FOR_ALL)
        self.plain &= at <= self._stops
        self._at = np.minimum(at, self._stops)
        return begins, self._at

    def _skip_alone(self, at: int, stop: int, tag: int, *, most: int) -> int:
        """Behind the last occurrence of a field, or behind ``stop`` if there are too many or the last one is cut."""
        wire = self._buffer
        while at < stop and wire[at] == tag:
            length, shift, at = 0, 0, at + 1
            while wire[at] & 0x80 and shift < 56:
                length |= (wire[at] & 0x7F) << shift
                at, shift = at + 1, shift + 7
            at = min(at + 1 + (length | wire[at] << shift), stop + 1)
            most -= 1
            if most < 0:
                return stop + 1
        return at

    def texts(self, field: int) -> tuple[Ints, Ints]:
        """Begin and end on the wire of a text; equal where it is left out. It is skipped."""
        begins, here = self._at, self._here(field, _DELIMITED)
        length, width = self._varints(np.where(here, begins + 1, len(self._words) - 1))
        begins = np.where(here, begins + 1 + width, begins)
        ends = np.where(here, np.minimum(begins + length, self._stops), begins)
        self.plain &= ~here | (begins + length <= self._stops)
        self._at = ends
        return begins, ends

    def items(self, field: int, *, most: int) -> tuple[Ints, Ints, Ints]:
        """Message, begin and end on the wire of each occurrence of a repeated submessage, in order; they are skipped.

        Args:
            field: Its number.
            most: A message with more of them is not plain.
        """
        owners: list[Ints] = []
        firsts: list[Ints] = []
        lasts: list[Ints] = []
        rows = np.flatnonzero(self._here(field, _DELIMITED))
        tag, at, stops = field << 3 | _DELIMITED, self._at[rows], self._stops[rows]
        self._at = self._at.copy()
        while len(rows):
            length, width = self._varints(at + 1)
            first = at + 1 + width
            last = first + length
            whole = last <= stops
            if len(owners) == most:
                whole[:] = False
            if not whole.all():
                self.plain[rows[~whole]] = False
                rows, first, last, stops = rows[whole], first[whole], last[whole], stops[whole]
            owners.append(rows)
            firsts.append(first)
            lasts.append(last)
            self._at[rows] = last
            more = (last < stops) & (self._bytes[last] == tag)
            rows, at, stops = rows[more], last[more], stops[more]
        if len(owners) == 1:
            return owners[0], firsts[0], lasts[0]
        if not owners:
            nothing = np.zeros(0, dtype=np.int64)
            return nothing, nothing, nothing
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        return owner[order], np.concatenate(firsts)[order], np.concatenate(lasts)[order]

    def end(self) -> None:
        """Nothing may be left."""
        self.plain &= self._at == self._stops

    def _here(self, field: int, kind: int) -> Bools:
        found: Bools = (self._at < self._stops) & (self._bytes[self._at] == (field << 3 | kind))
        return found

    def _varints(self, places: Ints) -> tuple[Ints, Ints]:
        """The integers that begin at some places, and how many bytes they take; longer ones than 8 are not plain."""
        words = self._words[places]
        if not (words & _LONGER_THAN_1).any():  # as most are
            return (words & np.uint64(0x7F)).view(np.int64), np.ones(len(places), dtype=np.int64)
        if not ((words & _LONGER_THAN_2) == _LONGER_THAN_2).any():
            longer = (words >> np.uint64(7)) & np.uint64(1)
            high = (words >> np.uint64(1)) & np.uint64(0x3F80)
            return ((words & np.uint64(0x7F)) | high * longer).view(np.int64), longer.view(np.int64) + 1
        ends = ~words & np.uint64(0x8080808080808080)
        lowest = ends & (~ends + np.uint64(1))
        if len(places) == len(self.plain):
            self.plain &= ends != 0
        words &= lowest | (lowest - np.uint64(1))
        words = words & np.uint64(0x007F007F007F007F) | (words & np.uint64(0x7F007F007F007F00)) >> np.uint64(1)
        words = words & np.uint64(0x00003FFF00003FFF) | (words & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
        words = words & np.uint64(0x000000000FFFFFFF) | (words & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
        # The end's bit is 7 above a multiple of 8: times these bytes, it moves the one that is the width to the top.
        width = (lowest >> np.uint64(7)) * _WIDTHS >> np.uint64(56)
        return words.view(np.int64), np.maximum(width.view(np.int64), 1)
