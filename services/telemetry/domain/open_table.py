"""The open frames of one epoch: a table of iterations by ranks that says which iteration of whom is where. Pure.

Whom a frame waits for is no state of its own: it follows from who is a member, what is in, and how far each has come.
"""

from typing import NamedTuple

import numpy as np

from evenkeel.contracts.measured_arrays import Bools, Floats, Ints

_BEYOND = np.iinfo(np.int64).max


class Rows(NamedTuple):
    """Iterations of one epoch that came together.

    Attributes:
        number: Number of each among the held ones.
        seat: Who brought it.
        rank: Its rank.
        incarnation: Its process.
        iteration: Which iteration.
        wall_seconds: How long that took.
        offset: Offset of the record that brought it.
    """

    number: Ints
    seat: Ints
    rank: Ints
    incarnation: Ints
    iteration: Ints
    wall_seconds: Floats
    offset: Ints

    def only(self, which: Bools | Ints) -> "Rows":
        """Some of them."""
        return Rows._make(column[which] for column in self)


class OpenTable:
    """S ranks that brought something in the epoch, or are members; K open frames.

    Attributes:
        epoch: The epoch.
        settled: Its members are known.
        rank: [S] Ascending.
        is_member: [S] Expected in its frames.
        incarnation: [S] Newest process that brought something; -1 for none.
        seat: [S] Who that is.
        newest: [S] Newest iteration that it brought.
        missed: [S] Frames in a row that closed without it.
        gone: [S] Newest process of the rank that has ended; -1 for none.
        iteration: [K] Ascending.
        number: [K, S] Where what came is held; -1 for nothing.
        came: [K, S] Which process brought it; -1 for nothing.
        came_seat: [K, S] Who that was.
        first_at_seconds: [K] When the first of it came, Unix seconds; later by what was excused since.
        last_at_seconds: [K] When the newest of it came, likewise.
        longest_seconds: [K] The longest iteration in it.
        first_offset: [K] Offset of the oldest record in it.
    """

    def __init__(self, epoch: int) -> None:
        """Starts without ranks and frames."""
        self.epoch = epoch
        self.settled = False
        none = np.zeros(0, dtype=np.int64)
        self.rank, self.seat, self.newest, self.missed, self.gone, self.incarnation = (none.copy() for _ in range(6))
        self.is_member: Bools = np.zeros(0, dtype=np.bool_)
        self.iteration, self.first_offset = none.copy(), none.copy()
        self.number, self.came, self.came_seat = (np.zeros((0, 0), dtype=np.int64) for _ in range(3))
        self.first_at_seconds: Floats = np.zeros(0)
        self.last_at_seconds: Floats = np.zeros(0)
        self.longest_seconds: Floats = np.zeros(0)

    def __len__(self) -> int:
        return len(self.iteration)

    def waiting(self, *, max_missed: int) -> Bools:
        """[K, S] Whom each frame waits for: who may still bring it."""
        absent = self.number < 0
        if self.settled:
            expected: Bools = self.is_member & (self.missed < max_missed) & (self.newest < self.iteration[:, None])
            return absent & expected
        # Members (those of the epoch before, while ranks come back), and who is in it and has not gone on.
        stays = (self.newest == self.iteration[:, None]) & (self.gone < self.incarnation)
        comes = self.is_member & (self.newest < self.iteration[:, None])
        return np.where(absent, comes, stays)

    def put(self, rows: Rows, now_seconds: float) -> Bools:
        """Takes in rows; returns which of them were new: of one rank's repetitions the first of the latest process."""
        columns = self._columns(rows.rank)
        places = self._places(rows, now_seconds)
        cells = places * len(self.rank) + columns
        order = np.lexsort((np.arange(len(cells)), -rows.incarnation, cells))
        first = np.ones(len(cells), dtype=np.bool_)
        first[1:] = cells[order][1:] != cells[order][:-1]
        is_new: Bools = np.zeros(len(cells), dtype=np.bool_)
        is_new[order[first]] = True
        is_new &= self.came[places, columns] < rows.incarnation
        new, places, columns = rows.only(is_new), places[is_new], columns[is_new]
        self.number[places, columns] = new.number
        self.came[places, columns], self.came_seat[places, columns] = new.incarnation, new.seat
        self.last_at_seconds[places] = now_seconds
        np.maximum.at(self.longest_seconds, places, new.wall_seconds)
        np.minimum.at(self.first_offset, places, new.offset)
        self.note(new)
        return is_new

    def note(self, rows: Rows) -> None:
        """Who brought rows is there, and has come so far."""
        columns = self._columns(rows.rank)
        order = np.lexsort((rows.iteration, rows.incarnation, columns))
        columns = columns[order]
        last = order[np.append(columns[1:] != columns[:-1], True)[: len(order)]]
        newest, columns = rows.only(last), self._columns(rows.rank[last])
        is_live = newest.incarnation > self.gone[columns]
        later = newest.incarnation > self.incarnation[columns]
        same = newest.incarnation == self.incarnation[columns]
        came = np.where(later, newest.iteration, np.maximum(self.newest[columns], newest.iteration))
        known = later | same
        columns, came = columns[known], came[known]
        self.incarnation[columns], self.seat[columns] = newest.incarnation[known], newest.seat[known]
        self.newest[columns] = came
        self.missed[columns] = 0
        if self.settled:
            self.is_member[columns] |= is_live[known]

    def expect(self, other: "OpenTable") -> None:
        """Members of another epoch are waited for, too."""
        columns = self._columns(other.rank[other.is_member])
        self.is_member[columns] |= self.gone[columns] < other.incarnation[other.is_member]

    def gone_on(self, ranks: Ints) -> None:
        """These ranks bring nothing more in this epoch."""
        self.newest[np.isin(self.rank, ranks)] = _BEYOND

    def end(self, rank: int, incarnation: int) -> bool:
        """A process ended; returns whether that changes anything."""
        [column] = self._columns(np.array([rank]))
        self.gone[column] = max(int(self.gone[column]), incarnation)
        changes = bool(self.incarnation[column] <= incarnation)
        if changes:
            self.is_member[column] = False
        return changes

    def settle(self) -> None:
        """The first frame closes: who is in it, or in another one, is a member."""
        self.settled = True
        self.is_member = (self.number >= 0).any(axis=0) & (self.gone < self.incarnation)

    def close(self, count: int) -> None:
        """Takes out the oldest frames; members that are not in them, and not further on, have missed them."""
        for place in range(count) if (self.number[:count] < 0).any() else ():
            without = self.is_member & (self.number[place] < 0) & (self.newest < self.iteration[place])
            self.missed += without
        self._keep(np.arange(count, len(self)))

    def drop_from(self, iteration: int) -> int:
        """Takes out the frames of an iteration and of all later ones; returns how many rows were in them."""
        dropped = self.iteration >= iteration
        num_rows = int((self.number[dropped] >= 0).sum())
        self._keep(np.flatnonzero(~dropped))
        return num_rows

    def excuse(self, seconds: float) -> None:
        """So long nothing could be heard: it does not count as waiting."""
        self.first_at_seconds += seconds
        self.last_at_seconds += seconds

    def _keep(self, places: Ints) -> None:
        for name in ("iteration", "first_offset", "number", "came", "came_seat"):
            setattr(self, name, getattr(self, name)[places])
        for name in ("first_at_seconds", "last_at_seconds", "longest_seconds"):
            setattr(self, name, getattr(self, name)[places])

    def _columns(self, ranks: Ints) -> Ints:
        """Column of each rank; who is new gets one."""
        columns = np.searchsorted(self.rank, ranks)
        known = columns < len(self.rank)
        known[known] = self.rank[columns[known]] == ranks[known]
        if not known.all():
            self._insert(np.unique(ranks[~known]))
            columns = np.searchsorted(self.rank, ranks)
        return columns

    def _insert(self, ranks: Ints) -> None:
        at = np.searchsorted(self.rank, ranks)
        self.rank, self.missed = np.insert(self.rank, at, ranks), np.insert(self.missed, at, 0)
        self.is_member = np.insert(self.is_member, at, False)
        for name in ("incarnation", "seat", "newest", "gone"):
            setattr(self, name, np.insert(getattr(self, name), at, -1))
        for name in ("number", "came", "came_seat"):
            setattr(self, name, np.insert(getattr(self, name), at, -1, axis=1))

    def _places(self, rows: Rows, now_seconds: float) -> Ints:
        """Frame of each row; what is new is opened."""
        new = np.setdiff1d(rows.iteration, self.iteration)
        if len(new):
            at = np.searchsorted(self.iteration, new)
            self.iteration = np.insert(self.iteration, at, new)
            for name in ("number", "came", "came_seat"):
                setattr(self, name, np.insert(getattr(self, name), at, -1, axis=0))
            self.first_offset = np.insert(self.first_offset, at, _BEYOND)
            for name, value in (("first_at_seconds", now_seconds), ("last_at_seconds", now_seconds)):
                setattr(self, name, np.insert(getattr(self, name), at, value))
            self.longest_seconds = np.insert(self.longest_seconds, at, 0.0)
        return np.searchsorted(self.iteration, rows.iteration)
