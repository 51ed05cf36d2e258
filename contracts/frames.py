"""Frames of a job as arrays: what all ranks measured in some iterations, which everybody behind telemetry reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from evenkeel.contracts.columns import ITERATION, PRESENT, READING, columns_of
from evenkeel.contracts.measured_arrays import (
    COLUMNS,
    MeasuredArrays,
    Texts,
    check_lengths,
    check_lists,
    picked,
    read_column,
    write_columns,
)
from evenkeel.numeric.arrays import Bools, Floats, Ints

_OF_RANKS = frozenset(column.name for column in ITERATION)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Members:
    """R ranks of frames, ascending by rank; columns with unit and wire as in :mod:`evenkeel.contracts.columns`.

    Attributes:
        node_of: Place of its node in ``names``.
        device_of: Place of its device there.
        names: Nodes and devices, each once.
    """

    rank: Annotated[Ints, "", "sint32"]
    incarnation: Annotated[Ints, "", "int32"]
    replica: Annotated[Ints, "", "int32"]
    stage: Annotated[Ints, "", "int32"]
    shard: Annotated[Ints, "", "int32"]
    node_of: Annotated[Ints, "", "int32"]
    device_of: Annotated[Ints, "", "int32"]
    forward_flops_per_token: Annotated[Floats, "FLOP", "double"]
    forward_flops_per_squared_length: Annotated[Floats, "FLOP", "double"]
    backward_multiple: Annotated[Floats, "1", "double"]
    names: Texts

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def nodes(self) -> Texts:
        """Node of each."""
        return tuple(self.names[place] for place in self.node_of.tolist())

    @property
    def devices(self) -> Texts:
        """Device of each."""
        return tuple(self.names[place] for place in self.device_of.tolist())


MEMBER = columns_of(Members)


@dataclass(frozen=True, kw_only=True, eq=False)
class Frames(MeasuredArrays):
    """T >= 1 iterations of one epoch and the same R members: columns [T, R], C-contiguous, read only.

    Attributes:
        epoch: Epoch of all of them.
        members: Who they are of.
        iteration: [T].
        closed_at_unix_seconds: [T] When each closed, by the broker's clock.
        last_heard_at_unix_seconds: [T] When the last of each came, by the broker's clock.
        reading_of: Place among the members of the process that each host reading is of.
    """

    epoch: int
    members: Members
    closed_at_unix_seconds: Annotated[Floats, "s", "double"]
    last_heard_at_unix_seconds: Annotated[Floats, "s", "double"]
    reading_of: Ints

    def __len__(self) -> int:
        return len(self.iteration)

    @property
    def present(self) -> Bools:
        """[T, R] True where a rank reported the iteration."""
        return self.has(PRESENT)

    def has(self, flag: int) -> Bools:
        """[T, R] True where a flag of :mod:`evenkeel.contracts.columns` is set."""
        found: Bools = (self.flags & flag) != 0
        return found

    def part(self, first: int, stop: int) -> "Frames":
        """The frames from ``first`` up to ``stop``, at least one; host readings stay with the last one."""
        if (first, stop) == (0, len(self)):
            return self
        shape = (stop - first, len(self.members))
        arrays = self.arrays()
        flat = {name: array.ravel() if name in _OF_RANKS else array for name, array in arrays.items()}
        flat["iteration"] = np.zeros(len(self) * shape[1], dtype=np.int64)
        parts = picked(flat, np.arange(first * shape[1], stop * shape[1]))
        parts = {name: array.reshape(shape) if name in _OF_RANKS else array for name, array in parts.items()}
        parts["iteration"] = self.iteration[first:stop]
        readings = {column.name: getattr(self, column.name) for column in READING} | {"reading_of": self.reading_of}
        if stop < len(self):
            readings = {name: array[:0] for name, array in readings.items()}
        return Frames(
            epoch=self.epoch,
            members=self.members,
            closed_at_unix_seconds=self.closed_at_unix_seconds[first:stop],
            last_heard_at_unix_seconds=self.last_heard_at_unix_seconds[first:stop],
            **parts,
            **readings,
        )

    def each(self) -> Iterator["Frames"]:
        """The frames one by one."""
        return (self.part(place, place + 1) for place in range(len(self)))


_TIMES = columns_of(Frames)


def members_of(rank: Sequence[int], *, nodes: Sequence[str], devices: Sequence[str], **columns: Any) -> Members:
    """Members by their nodes and devices; columns that are not given are zero."""
    names = {name: place for place, name in enumerate(dict.fromkeys((*nodes, *devices)))}
    columns |= {
        "rank": rank,
        "node_of": [names[each] for each in nodes],
        "device_of": [names[each] for each in devices],
    }
    arrays: dict[str, Any] = {
        column.name: np.array(columns.get(column.name, [0] * len(rank)), dtype=column.dtype) for column in MEMBER
    }
    return Members(names=tuple(names), **arrays)


def frames_of(
    members: Members,
    iteration: Sequence[int],
    *,
    closed_at_unix_seconds: Sequence[float],
    epoch: int = 0,
    **columns: Any,
) -> Frames:
    """Frames in which all members are present, of columns that can be made [T, R]; what is not given is zero.

    ``flags`` are what is known beside ``PRESENT``.
    """
    shape = (len(iteration), len(members))
    columns["flags"] = np.asarray(columns.get("flags", 0)) | PRESENT
    arrays: dict[str, Any] = {}
    for column in (*COLUMNS[1:], *READING):
        of_rank = column.name in _OF_RANKS
        values = np.asarray(columns.pop(column.name, 0 if of_rank else []), dtype=column.dtype)
        arrays[column.name] = np.broadcast_to(values, shape).copy() if of_rank else values
    if columns:
        raise TypeError(f"frames have no {', '.join(columns)}")
    check_lists(arrays)
    closed_at = np.array(closed_at_unix_seconds, dtype=np.float64)
    return Frames(
        epoch=epoch,
        members=members,
        iteration=np.array(iteration, dtype=np.int64),
        closed_at_unix_seconds=closed_at,
        last_heard_at_unix_seconds=closed_at,
        reading_of=np.zeros(len(arrays["reading_at_unix_seconds"]), dtype=np.int64),
        **arrays,
    )


def read_frames(message: Any) -> Frames:
    """The columns of a ``Frames`` message.

    Raises:
        ValueError: Columns do not fit together; the message says which.
    """
    members = _read_members(message.members)
    num_frames, num_members = len(message.iteration), len(members)
    if not num_frames or not num_members:
        raise ValueError(f"frames of {num_frames} iterations and {num_members} members")
    columns = (*_TIMES, *COLUMNS, *READING)
    arrays: dict[str, Any] = {column.name: read_column(message, column) for column in columns}
    check_lengths(arrays, _TIMES, num_frames, "frames")
    check_lengths(arrays, ITERATION[1:], num_frames * num_members, "entries")
    for column in ITERATION[1:]:
        arrays[column.name] = arrays[column.name].reshape(num_frames, num_members)
    check_lists(arrays)
    reading_of = np.asarray(message.reading_of, dtype=np.int64)
    check_lengths(arrays, READING, len(reading_of), "host readings")
    if len(reading_of) and reading_of.max() >= num_members:
        raise ValueError(f"a host reading of member {reading_of.max()} of {num_members}")
    return Frames(epoch=message.epoch, members=members, reading_of=reading_of, **arrays)


def write_frames(message: Any, frames: Frames) -> None:
    """Puts frames into an empty ``Frames`` message."""
    message.epoch = frames.epoch
    message.members.names.extend(frames.members.names)
    write_columns(message.members, frames.members, MEMBER)
    write_columns(message, frames, (*_TIMES, *COLUMNS, *READING))
    message.reading_of.extend(frames.reading_of.tolist())


def _read_members(message: Any) -> Members:
    columns = {column.name: read_column(message, column) for column in MEMBER}
    names = tuple(message.names)
    check_lengths(columns, MEMBER, len(columns["rank"]), "members")
    for name in ("node_of", "device_of"):
        if len(columns[name]) and not 0 <= columns[name].min() <= columns[name].max() < len(names):
            raise ValueError(f"{name} points outside of the {len(names)} names")
    if (np.diff(columns["rank"]) <= 0).any():
        raise ValueError("members are not ascending by rank")
    return Members(names=names, **columns)
