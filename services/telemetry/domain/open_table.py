"""The open frames of one epoch: a table of iterations by ranks that holds what came of whom. Pure.

Whom a frame waits for is no state of its own: it follows from who is a member, what is in, and how far each has come.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.contracts.frames import MEMBER
from evenkeel.numeric.arrays import Bools, Ints

MAX_MISSED = 3
"""A rank that missed so many frames in a row is listed as missing, but no longer waited for."""

# Rows are taken, compressed and put, which copies them as they are; indexing would do so field by field.
_BEYOND = np.iinfo(np.int64).max

Rows = npt.NDArray[np.void]
WHO = np.dtype([(column.name, column.dtype) for column in MEMBER])
"""Who somebody is: a member of frames; ``node_of`` and ``device_of`` are places among the names that the job has."""
ROW = np.dtype(
    [
        ("who", WHO),
        *((name, np.int64) for name in ("epoch", "iteration", "number", "offset")),
        *((name, np.float64) for name in ("wall_seconds", "at_seconds")),
    ]
)
"""An iteration of a rank: who made it, its number among the held ones (-1 for none), the offset of its record, and when
that came, Unix seconds; later by what was excused since."""
_RANK = np.dtype([("who", WHO), *((name, np.int64) for name in ("newest", "missed", "gone")), ("is_member", np.bool_)])
_NOTHING: Any = np.zeros((), dtype=ROW)
_NOTHING["number"] = _NOTHING["who"]["incarnation"] = -1


class OpenTable:
    """S ranks that brought something in the epoch, or are members; K open frames.

    Attributes:
        epoch: The epoch.
        settled: Its members are known.
        ranks: [S] Ascending: ``who`` brought something last (incarnation -1: nobody), the ``newest`` iteration that it
            brought, how many frames in a row it ``missed``, the newest process of the rank that is ``gone`` (-1: none),
            and whether it ``is_member``: expected in the frames.
        iteration: [K] Ascending.
        cells: [K, S] What came.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.settled = False
        self.ranks: Rows = np.zeros(0, dtype=_RANK)
        self.iteration = np.zeros(0, dtype=np.int64)
        self.cells: Rows = np.zeros((0, 0), dtype=ROW)

    def __len__(self) -> int:
        return len(self.iteration)

    @property
    def rank(self) -> Ints:
        """[S] Rank of each."""
        rank: Ints = self.ranks["who"]["rank"]
        return rank

    @property
    def is_in(self) -> Bools:
        """[K, S] Whether something came."""
        is_in: Bools = self.cells["number"] >= 0
        return is_in

    @property
    def oldest(self) -> Rows:
        """What came for the oldest frame; there must be one."""
        oldest: Rows = self.cells[0].compress(self.is_in[0])
        return oldest

    def waiting(self) -> Bools:
        """[K, S] Whom each frame waits for: who may still bring it."""
        ranks, absent = self.ranks, ~self.is_in
        comes: Bools = ranks["is_member"] & (ranks["newest"] < self.iteration[:, None])
        if self.settled:
            return absent & comes & (ranks["missed"] < MAX_MISSED)
        # Members (those of the epoch before, while ranks come back), and who is in it and has not gone on.
        stays = (ranks["newest"] == self.iteration[:, None]) & (ranks["gone"] < ranks["who"]["incarnation"])
        return np.where(absent, comes, stays)

    def put(self, rows: Rows) -> Rows:
        """Takes in rows; returns which of them were new: of one rank's repetitions the first of the latest process."""
        columns, places = self._columns(rows["who"]["rank"]), self._places(rows["iteration"])
        incarnation = rows["who"]["incarnation"]
        order = np.lexsort((-incarnation, columns, places))
        cells = (places * len(self.ranks) + columns)[order]
        first = order[np.append(True, cells[1:] != cells[:-1])[: len(order)]]
        new = first[self.cells["who"]["incarnation"][places[first], columns[first]] < incarnation[first]]
        came: Rows = rows.take(new)
        self.cells.put(places[new] * len(self.ranks) + columns[new], came)
        self.note(came)
        return came

    def note(self, rows: Rows) -> None:
        """Who brought rows is there, and has come so far."""
        columns = self._columns(rows["who"]["rank"])
        order = np.lexsort((rows["iteration"], rows["who"]["incarnation"], columns))
        columns = columns[order]
        last = np.append(columns[1:] != columns[:-1], True)[: len(order)]
        columns, came = columns[last], rows.take(order[last])
        known = self.ranks.take(columns)
        incarnation, before = came["who"]["incarnation"], known["who"]["incarnation"]
        further = np.maximum(known["newest"], came["iteration"])
        known["newest"] = np.where(incarnation > before, came["iteration"], further)
        known["who"], known["missed"] = came["who"], 0
        known["is_member"] |= self.settled & (incarnation > known["gone"])
        stays = incarnation >= before
        self.ranks.put(columns[stays], known.compress(stays))

    def expect(self, other: "OpenTable") -> None:
        """Members of another epoch are waited for, too."""
        members = other.ranks[other.ranks["is_member"]]["who"]
        columns = self._columns(members["rank"])
        self.ranks["is_member"][columns] |= self.ranks["gone"][columns] < members["incarnation"]

    def gone_on(self, ranks: Ints) -> None:
        """These ranks bring nothing more in this epoch."""
        self.ranks["newest"][np.isin(self.rank, ranks)] = _BEYOND

    def end(self, rank: int, incarnation: int) -> bool:
        """A process ended; returns whether that changes anything."""
        [column] = self._columns(np.array([rank]))
        self.ranks["gone"][column] = max(self.ranks["gone"][column], incarnation)
        changes = bool(self.ranks["who"]["incarnation"][column] <= incarnation)
        if changes:
            self.ranks["is_member"][column] = False
        return changes

    def settle(self) -> None:
        """The first frame closes: who is in it, or in another one, is a member."""
        self.settled = True
        lives: Bools = self.ranks["gone"] < self.ranks["who"]["incarnation"]
        self.ranks["is_member"] = self.is_in.any(axis=0) & lives

    def close(self, count: int) -> None:
        """Takes out the oldest frames; members that are not in them, and not further on, have missed them."""
        ranks, further = self.ranks, self.ranks["newest"] >= self.iteration[:count, None]
        ranks["missed"] += (ranks["is_member"] & ~self.is_in[:count] & ~further).sum(axis=0)
        self._keep(np.arange(count, len(self)))

    def drop_from(self, iteration: int) -> int:
        """Takes out the frames of an iteration and of all later ones; returns how many rows were in them."""
        dropped = self.iteration >= iteration
        num_rows = int(self.is_in[dropped].sum())
        self._keep(np.flatnonzero(~dropped))
        return num_rows

    def of(self, ranks: Ints) -> Rows:
        """What is known of each rank."""
        columns = self._columns(ranks)
        known: Rows = self.ranks.take(columns)
        return known

    def _columns(self, ranks: Ints) -> Ints:
        """Column of each rank; who is new gets one."""
        new = _others(ranks, self.rank)
        if len(new):
            at, blank = np.searchsorted(self.rank, new), np.zeros(len(new), dtype=_RANK)
            blank["who"]["rank"] = new
            blank["who"]["incarnation"] = blank["newest"] = blank["gone"] = -1
            self._grow(self.iteration, np.insert(self.ranks, at, blank))
        return np.searchsorted(self.rank, ranks)

    def _places(self, iterations: Ints) -> Ints:
        """Frame of each iteration; what is new is opened."""
        new = _others(iterations, self.iteration)
        if len(new):
            self._grow(np.union1d(self.iteration, new), self.ranks)
        return np.searchsorted(self.iteration, iterations)

    def _grow(self, iteration: Ints, ranks: Rows) -> None:
        """Makes room for iterations and ranks, among which are those that are there."""
        rows, columns = np.searchsorted(iteration, self.iteration), np.searchsorted(ranks["who"]["rank"], self.rank)
        cells = np.repeat(_NOTHING, len(iteration) * len(ranks))
        cells.put(rows[:, None] * len(ranks) + columns, self.cells)
        self.iteration, self.ranks, self.cells = iteration, ranks, cells.reshape(len(iteration), len(ranks))

    def _keep(self, places: Ints) -> None:
        self.iteration, self.cells = self.iteration[places], self.cells.take(places, axis=0)


def _others(values: Ints, known: Ints) -> Ints:
    """Which values are not among known ones, which are ascending; so are they."""
    others: Ints = values[np.append(known, _BEYOND)[np.searchsorted(known, values)] != values]
    return np.unique(others) if len(others) else others
