"""Makes frames of what ranks brought: keeps iterations and readings of hosts until their frames close. Pure."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.columns import ITERATION, PRESENT, READING
from evenkeel.contracts.frames import Frames, Members
from evenkeel.contracts.measured_arrays import Arrays, Ints, joined, picked
from evenkeel.services.telemetry.domain.open_table import OpenTable

# Readings of a second each: of a job whose frames do not close, the newest are kept.
_MAX_READINGS = 16_384
# Numbers of processes that no table uses any more are forgotten when there are so many.
_MAX_SEATS = 65_536
_OF_RANKS = tuple(column.name for column in ITERATION)


class FrameBuilder:
    """What open frames of one job will be made of."""

    def __init__(self) -> None:
        """Starts with nothing."""
        self._rows, self._readings, self._seats = _HeldRows(), _HeldReadings(), _Seats()

    def add(self, batches: Batches) -> tuple[Ints, Ints]:
        """Takes in batches; returns a number for each iteration, and one for who brought it."""
        self._readings.add(batches)
        return self._rows.add(batches), self._seats.of(batches)[batches.process_of]

    def seats_of(self, members: Members) -> Ints:
        """The numbers for members."""
        return self._seats.of_members(members)

    def frames(self, table: OpenTable, count: int, now_seconds: float) -> Iterator[Frames]:
        """The oldest frames of a table, as many together as are of the same members."""
        is_in = table.number[:count] >= 0
        seats, known = [], table.seat
        for place in range(count):
            known = np.where(is_in[place], table.came_seat[place], np.where(table.is_member, known, -1))
            seats.append(known)
        borders = [0, *(at for at in range(1, count) if not _alike(seats[at - 1], seats[at])), count]
        for first_place, stop in pairwise(borders):
            yield self._of_members(table, first_place, stop, seats[stop - 1], now_seconds)

    def _of_members(self, table: OpenTable, first: int, stop: int, seats: Ints, now_seconds: float) -> Frames:
        columns = np.flatnonzero(seats >= 0)
        members = self._seats.members(seats[columns])
        shape = (stop - first, len(columns))
        found = self._rows.take(table.number[first:stop, columns].ravel())
        arrays = {name: values.reshape(shape) if name in _OF_RANKS else values for name, values in found.items()}
        arrays["iteration"] = table.iteration[first:stop]
        arrays["flags"] = np.where(table.number[first:stop, columns] < 0, 0, arrays["flags"] | PRESENT)
        return Frames(
            epoch=table.epoch,
            members=members,
            closed_at_unix_seconds=np.full(stop - first, now_seconds),
            last_heard_at_unix_seconds=table.last_at_seconds[first:stop],
            **arrays,
            **self._readings.take(members),
        )

    def forget(self, tables: Sequence[OpenTable]) -> None:
        """What none of these tables needs."""
        needed = [int(table.number[table.number >= 0].min()) for table in tables if len(table)]
        if needed:
            self._rows.drop_before(min(needed))
        else:
            self._rows.drop()
        if len(self._seats) > _MAX_SEATS:
            used = np.unique(np.concatenate([np.append(each.came_seat, each.seat) for each in tables]))
            moved = np.append(self._seats.keep(used[used >= 0]), -1)
            for table in tables:
                table.seat, table.came_seat = moved[table.seat], moved[table.came_seat]


def _alike(before: Ints, after: Ints) -> bool:
    return bool((before == after).all())


class _HeldRows:
    """Iterations of one job, numbered in the order in which they came."""

    def __init__(self) -> None:
        """Starts with none."""
        self._parts: list[Arrays] = []
        self._first = self._next = 0

    def add(self, batches: Batches) -> Ints:
        """Takes in the iterations of batches; returns their numbers."""
        first, self._next = self._next, self._next + len(batches.iteration)
        self._parts.append(batches.arrays())
        return np.arange(first, self._next)

    def take(self, numbers: Ints) -> Arrays:
        """Their columns and lists; -1 is one that is not there."""
        if len(self._parts) > 1:
            self._parts = [joined(self._parts)]
        return picked(self._parts[0], np.where(numbers < 0, -1, numbers - self._first))

    def drop_before(self, number: int) -> None:
        """Forgets those that are older; now and then, so that what stays is not copied each time."""
        num_older = number - self._first
        if 2 * num_older > self._next - self._first:
            self._parts = [picked(joined(self._parts), np.arange(num_older, self._next - self._first))]
            self._first = number

    def drop(self) -> None:
        """Forgets all."""
        self._parts, self._first = [], self._next


class _HeldReadings:
    """Readings of the hosts of one job's processes, in the order in which they came."""

    def __init__(self) -> None:
        """Starts with none."""
        self._parts: list[Arrays] = []

    def add(self, batches: Batches) -> None:
        """Takes in the readings of batches."""
        if len(batches.reading_process_of):
            readings: Arrays = {column.name: getattr(batches, column.name) for column in READING}
            self._parts.append(readings | {"rank": batches.rank[batches.reading_process_of]})

    def take(self, members: Members) -> Arrays:
        """Gives away those of members, with ``reading_of``; those of others are forgotten."""
        if not self._parts:
            return _NONE
        held = {name: np.concatenate([part[name] for part in self._parts])[-_MAX_READINGS:] for name in self._parts[0]}
        self._parts = []
        ranks = held.pop("rank")
        places = np.minimum(np.searchsorted(members.rank, ranks), len(members) - 1)
        known = members.rank[places] == ranks
        return {name: values[known] for name, values in held.items()} | {"reading_of": places[known]}


_NONE: Arrays = {column.name: np.zeros(0, dtype=column.dtype) for column in READING}
_NONE["reading_of"] = np.zeros(0, dtype=np.int64)


class _Seats:
    """Numbers for who somebody is: process, place, position and what its share of the model costs."""

    def __init__(self) -> None:
        """Starts with none."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._seats: list[tuple[object, ...]] = []
        self._members: tuple[bytes, Members] | None = None

    def __len__(self) -> int:
        return len(self._seats)

    def of(self, batches: Batches) -> Ints:
        """The number of each batch's process."""
        columns = (getattr(batches, name) for name in _NUMBERS)
        told = zip(batches.node, batches.device, *(column.tolist() for column in columns), strict=True)
        return np.array([self._number(seat) for seat in told], dtype=np.int64)

    def of_members(self, members: Members) -> Ints:
        """The numbers of members."""
        columns = (getattr(members, name).tolist() for name in _NUMBERS)
        told = zip(members.nodes, members.devices, *columns, strict=True)
        return np.array([self._number(seat) for seat in told], dtype=np.int64)

    def members(self, numbers: Ints) -> Members:
        """Members of frames, by their numbers, which are ascending by rank."""
        key = numbers.tobytes()
        if self._members is None or self._members[0] != key:
            seats = [self._seats[number] for number in numbers.tolist()]
            nodes, devices, *columns = zip(*seats, strict=True)
            names = {name: place for place, name in enumerate(dict.fromkeys((*nodes, *devices)))}
            self._members = (
                key,
                Members(
                    names=tuple(names),
                    node_of=np.array([names[node] for node in nodes], dtype=np.int64),
                    device_of=np.array([names[device] for device in devices], dtype=np.int64),
                    **dict(zip(_NUMBERS, map(np.array, columns), strict=True)),
                ),
            )
        return self._members[1]

    def keep(self, used: Ints) -> Ints:
        """Forgets all but those that are used; returns the new number of each old one."""
        moved = np.full(len(self._seats), -1, dtype=np.int64)
        moved[used] = np.arange(len(used))
        self._seats = [self._seats[number] for number in used.tolist()]
        self._numbers = {seat: number for number, seat in enumerate(self._seats)}
        self._members = None
        return moved

    def _number(self, seat: tuple[object, ...]) -> int:
        number = self._numbers.setdefault(seat, len(self._seats))
        if number == len(self._seats):
            self._seats.append(seat)
        return number


_NUMBERS = (
    *("rank", "incarnation", "replica", "stage", "shard"),
    *("forward_flops_per_token", "forward_flops_per_squared_length", "backward_multiple"),
)
