"""Makes frames of what ranks brought: keeps iterations and readings of hosts until their frames close. Pure."""

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.columns import ITERATION, PRESENT, READING
from evenkeel.contracts.frames import Frames, Members
from evenkeel.contracts.measured_arrays import Arrays, Texts, joined, picked
from evenkeel.numeric.arrays import Ints
from evenkeel.services.telemetry.domain.open_table import ROW, WHO, OpenTable, Rows

# Readings of a second each: of a job whose frames do not close, the newest are kept.
_MAX_READINGS = 16_384
_OF_RANKS = tuple(column.name for column in ITERATION)
_PLACES = ("node_of", "device_of")
_NO_READINGS: Arrays = {column.name: np.zeros(0, dtype=column.dtype) for column in READING}
_NO_READINGS["reading_of"] = np.zeros(0, dtype=np.int64)


class FrameBuilder:
    """What open frames of one job will be made of: iterations, numbered in the order in which they came."""

    def __init__(self) -> None:
        self._parts: list[Arrays] = []
        self._first = self._next = 0
        self._readings: list[Arrays] = []
        self._names: dict[str, int] = {}
        self._members: tuple[bytes, Members] | None = None

    def add(self, batches: Batches, offsets: Ints, now_seconds: float) -> Rows:
        """Takes in batches; returns a row for each iteration."""
        if len(batches.reading_process_of):
            readings: Arrays = {column.name: getattr(batches, column.name) for column in READING}
            self._readings.append(readings | {"rank": batches.rank[batches.reading_process_of]})
        of, rows = batches.process_of, np.zeros(len(batches.iteration), dtype=ROW)
        first, self._next = self._next, self._next + len(rows)
        self._parts.append(batches.arrays())
        rows["number"] = np.arange(first, self._next)
        rows["who"], rows["epoch"], rows["offset"] = self.who(batches).take(of), batches.epoch[of], offsets[of]
        rows["iteration"], rows["wall_seconds"] = batches.iteration, batches.wall_seconds
        rows["at_seconds"] = now_seconds
        return rows

    def who(self, told: Batches | Members) -> Rows:
        """Who made batches, or is a member."""
        who = np.zeros(len(told), dtype=WHO)
        places = (told.nodes, told.devices) if isinstance(told, Members) else (told.node, told.device)
        for name in WHO.names or ():
            who[name] = self._named(places[_PLACES.index(name)]) if name in _PLACES else getattr(told, name)
        return who

    def frames(self, table: OpenTable, count: int, now_seconds: float) -> Iterator[Frames]:
        """The oldest frames of a table, as many together as are of the same members."""
        is_in, who, told = table.is_in[:count], table.ranks["who"].copy(), []
        for place in range(count):
            who.put(np.flatnonzero(is_in[place]), table.cells["who"][place].compress(is_in[place]))
            told.append(who.compress(is_in[place] | table.ranks["is_member"]))
        for key, alike in groupby(range(count), key=lambda place: told[place].tobytes()):
            places = list(alike)
            if self._members is None or self._members[0] != key:
                self._members = key, self._members_of(told[places[0]])
            yield self._of_members(table, slice(places[0], places[-1] + 1), self._members[1], now_seconds)

    def forget(self, tables: Iterable[OpenTable]) -> None:
        """What none of these tables needs; now and then, so that what stays is not copied each time."""
        needed = min((int(table.cells["number"][table.is_in].min()) for table in tables if len(table)), default=None)
        if needed is None:
            self._parts, self._first = [], self._next
        elif 2 * (needed - self._first) > self._next - self._first:
            self._parts = [picked(joined(self._parts), np.arange(needed - self._first, self._next - self._first))]
            self._first = needed

    def _of_members(self, table: OpenTable, places: slice, members: Members, now_seconds: float) -> Frames:
        cells = table.cells[places].take(np.searchsorted(table.rank, members.rank), axis=1)
        is_in = cells["number"] >= 0
        if len(self._parts) > 1:
            self._parts = [joined(self._parts)]
        found = picked(self._parts[0], np.where(is_in, cells["number"] - self._first, -1).ravel())
        arrays = {name: values.reshape(cells.shape) if name in _OF_RANKS else values for name, values in found.items()}
        arrays["iteration"] = table.iteration[places]
        arrays["flags"] = np.where(is_in, arrays["flags"] | PRESENT, 0)
        return Frames(
            epoch=table.epoch,
            members=members,
            closed_at_unix_seconds=np.full(len(cells), now_seconds),
            last_heard_at_unix_seconds=cells["at_seconds"].max(axis=1, where=is_in, initial=0.0),
            **arrays,
            **self._readings_of(members),
        )

    def _members_of(self, who: Rows) -> Members:
        names, places = np.unique([who[name] for name in _PLACES], return_inverse=True)
        known = list(self._names)
        columns = {name: who[name].copy() for name in WHO.names or () if name not in _PLACES}
        node_of, device_of = places.reshape(2, -1)
        return Members(
            names=tuple(known[place] for place in names.tolist()), node_of=node_of, device_of=device_of, **columns
        )

    def _readings_of(self, members: Members) -> Arrays:
        """Gives away those of members, with ``reading_of``; those of others are forgotten."""
        if not self._readings:
            return _NO_READINGS
        parts, self._readings = self._readings, []
        held = {name: np.concatenate([part[name] for part in parts])[-_MAX_READINGS:] for name in parts[0]}
        ranks = held.pop("rank")
        places = np.minimum(np.searchsorted(members.rank, ranks), len(members) - 1)
        known = members.rank[places] == ranks
        return {name: values[known] for name, values in held.items()} | {"reading_of": places[known]}

    def _named(self, names: Texts) -> list[int]:
        return [self._names.setdefault(name, len(self._names)) for name in names]
