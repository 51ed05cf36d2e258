"""Columns of a frame message, or of a run of frames, as arrays: who its entries are, and what they measured."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Bytes, Floats, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.common.kafka import RejectedRecordError
from evenkeel.services.detector.adapters.frame_rows import FrameRows, costs_of
from evenkeel.services.detector.adapters.packed_columns import column, read_columns, stacked
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_SEAT_COLUMNS = (
    "ranks",
    "incarnations",
    "node_of",
    "device_of",
    "replicas",
    "stages",
    "shards",
    "forward_flops_per_token",
    "forward_flops_per_squared_length",
    "backward_multiple",
)
_MEASURED_COLUMNS = (
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "data_seconds",
    "wall_seconds",
    "tensor_wait_seconds",
    "pipeline_wait_seconds",
    "gradient_wait_seconds",
    "vote_wait_seconds",
    "losses",
    "gradient_norms",
    "started_at_unix_seconds",
)
_FLAG_COLUMNS = ("has_loss", "has_gradient_norm")
# Jobs whose seats are remembered: some 150 bytes a rank.
_MAX_SEATS = 32
# Of a frame. Columns of zeros are left out, so that a few bytes may claim any number.
_MOST_MICRO_BATCHES = 1 << 22
_Raw = npt.NDArray[np.int32]


class Seats(NamedTuple):
    """Who sits where in a frame, the same in most frames of a job: shared, and not to be written to."""

    ranks: Ints
    incarnations: Ints
    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    positions: Ints
    costs: Floats


class Measured(NamedTuple):
    """What the entries of some frames measured, one frame after the other; the first six as in ``FrameRows``.

    Attributes:
        seconds: See there.
        losses: The same.
        has_loss: The same.
        gradient_norms: The same.
        has_gradient_norm: The same.
        marks: The same.
        started_at_unix_seconds: The same.
        workloads: The same.
        micro_batches: The same, those that the first frame names, then those of the second one.
        ends: Behind the last micro-batch of each frame.
    """

    seconds: Floats
    losses: Floats
    has_loss: Bools
    gradient_norms: Floats
    has_gradient_norm: Bools
    marks: Ints
    started_at_unix_seconds: Floats
    workloads: Floats
    micro_batches: Floats
    ends: Ints


def rows_of_columns(raw: bytes, epoch: int) -> FrameRows:
    """The entries that are in columns, in their order.

    Args:
        raw: The message ``FrameColumns``.
        epoch: Of the frame, and so of all of them.

    Raises:
        RejectedRecordError: The columns do not fit together.
    """
    columns = read_columns(raw)
    seats = seats_of(columns)
    num_entries = len(seats.ranks)
    measured = measured_of(columns, num_entries)
    return FrameRows(
        ranks=seats.ranks,
        incarnations=seats.incarnations,
        nodes=seats.nodes,
        devices=seats.devices,
        epochs=np.full(num_entries, epoch, dtype=np.int64),
        marks=measured.marks,
        seconds=measured.seconds,
        positions=seats.positions,
        costs=seats.costs,
        workloads=measured.workloads,
        micro_batches=measured.micro_batches,
        losses=measured.losses,
        has_loss=measured.has_loss,
        gradient_norms=measured.gradient_norms,
        has_gradient_norm=measured.has_gradient_norm,
        started_at_unix_seconds=measured.started_at_unix_seconds,
        traffic=_traffic(columns, num_entries),
    )


def seats_of(columns: Any) -> Seats:
    """Who the entries are.

    Raises:
        RejectedRecordError: The columns do not fit together.
    """
    return _seats(tuple(columns.names), *[getattr(columns, name) for name in _SEAT_COLUMNS])


def measured_of(columns: Any, num_entries: int, num_frames: int = 1) -> Measured:
    """What they measured.

    Args:
        columns: As :func:`read_columns` gives them.
        num_entries: Entries of a frame.
        num_frames: How many frames.

    Raises:
        RejectedRecordError: The columns do not fit together.
    """
    numbers = stacked(columns, _MEASURED_COLUMNS, num_entries, np.float64, num_frames)
    flags = stacked(columns, _FLAG_COLUMNS, num_entries, np.uint8, num_frames)
    seconds, losses, gradient_norms = _measured(numbers, flags)
    workloads, micro_batches, ends = _workloads(columns, num_entries, num_frames)
    return Measured(
        seconds=seconds,
        losses=losses,
        has_loss=flags[0] != 0,  # any number but 0 is true on the wire
        gradient_norms=gradient_norms,
        has_gradient_norm=flags[1] != 0,
        marks=column("marks", columns.marks, num_entries, num_frames).astype(np.int64),
        started_at_unix_seconds=numbers[-1],
        workloads=workloads,
        micro_batches=micro_batches,
        ends=ends,
    )


@lru_cache(maxsize=_MAX_SEATS)
def _seats(names: tuple[str, ...], ranks: bytes, *raws: bytes) -> Seats:
    """The seats of a frame.

    Args:
        names: Nodes and devices.
        ranks: First of ``_SEAT_COLUMNS``, as it is on the wire.
        raws: The others.

    Raises:
        RejectedRecordError: They do not fit together.
    """
    size = len(ranks) // 4
    columns = {name: column(name, raw, size) for name, raw in zip(_SEAT_COLUMNS, (ranks, *raws), strict=True)}
    texts = []
    for name in ("node_of", "device_of"):
        indexes = columns[name]
        if len(indexes) and (int(indexes.min()) < 0 or int(indexes.max()) >= (len(names) or 1)):
            raise RejectedRecordError("bad_columns", f"{name} points beyond the {len(names) or 1} there are")
        texts.append(tuple([(names or ("",))[index] for index in indexes.tolist()]))
    positions = np.column_stack([columns[name] for name in ("replicas", "stages", "shards")]).astype(np.int64)
    flops = np.column_stack([columns[name] for name in _SEAT_COLUMNS[-3:]])
    seats = Seats(
        ranks=columns["ranks"].astype(np.int64),
        incarnations=columns["incarnations"].astype(np.int64),
        nodes=texts[0],
        devices=texts[1],
        positions=positions,
        costs=costs_of(flops, positions[:, 1]),
    )
    # Costs go into compiled code, which would be compiled once more for arrays that nobody may write to.
    for each in (seats.ranks, seats.incarnations, seats.positions):
        each.setflags(write=False)
    return seats


def _workloads(columns: Any, num_entries: int, num_frames: int) -> tuple[Floats, Floats, Ints]:
    """``Measured.workloads``, ``micro_batches`` and ``ends``."""
    raw_sizes: bytes = columns.workload_sizes
    if not raw_sizes:
        return np.zeros((num_entries * num_frames, 3)), np.empty((0, 3)), np.zeros(num_frames, dtype=np.int64)
    sizes = column("workload_sizes", raw_sizes, len(raw_sizes) // 4)
    num_lists, too_many = divmod(len(sizes), num_frames)
    if too_many:
        raise RejectedRecordError("bad_columns", f"{len(sizes)} lists of micro-batches for {num_frames} frames")
    num_micro_batches = _total(sizes)
    if not 0 <= num_micro_batches <= _MOST_MICRO_BATCHES:
        raise RejectedRecordError("bad_columns", "lists of micro-batches are less than empty, or longer than can be")
    named = [
        column(name, getattr(columns, name), num_micro_batches)
        for name in ("micro_batch_indexes", "micro_batch_tokens", "micro_batch_sums_of_squares")
    ]
    workload_of = column("workload_of", columns.workload_of, num_entries, num_frames)
    workloads, micro_batches, fits = _dealt(sizes, num_lists, workload_of, *named)
    if not fits:
        raise RejectedRecordError("bad_columns", f"workload_of points beyond the {num_lists} there are")
    if num_frames == 1:
        return workloads, micro_batches, np.array([num_micro_batches])
    return workloads, micro_batches, np.cumsum(sizes.reshape(num_frames, num_lists).sum(axis=1, dtype=np.int64))


def _traffic(columns: Any, num_entries: int) -> list[pb.Traffic]:
    raw: list[bytes] = list(columns.traffic)
    if raw and len(raw) != num_entries:
        raise RejectedRecordError("bad_columns", f"{len(raw)} traffics of {num_entries} entries")
    return [pb.Traffic.FromString(each) for each in raw]


@compiled
def _measured(numbers: Floats, flags: Bytes) -> tuple[Floats, Floats, Floats]:
    """What the ranks measured.

    Args:
        numbers: ``[columns, entries]``, as ``_MEASURED_COLUMNS``.
        flags: ``[2, entries]``: whether there is a loss, and a gradient norm.

    Returns:
        ``FrameRows.seconds``, ``losses`` and ``gradient_norms``.
    """
    num_entries = numbers.shape[1]
    seconds = np.empty((num_entries, 8))
    losses, gradient_norms = np.empty(num_entries), np.empty(num_entries)
    for e in range(num_entries):
        data_seconds = numbers[3, e]
        seconds[e, 0] = numbers[0, e] + numbers[1, e]
        seconds[e, 1] = numbers[2, e] + data_seconds
        for wait in range(2, 7):
            seconds[e, wait] = numbers[wait + 2, e]
        seconds[e, 7] = data_seconds
        losses[e] = numbers[9, e] if flags[0, e] else np.nan
        gradient_norms[e] = numbers[10, e] if flags[1, e] else np.nan
    return seconds, losses, gradient_norms


@compiled
def _total(sizes: _Raw) -> int:
    """How many micro-batches the lists of these sizes have; -1 where one is less than empty."""
    total = 0
    for size in sizes:
        if size < 0:
            return -1
        total += size
    return total


@compiled
def _dealt(
    sizes: _Raw, num_lists: int, workload_of: _Raw, indexes: _Raw, tokens: _Raw, squares: Floats
) -> tuple[Floats, Floats, bool]:
    """``FrameRows.workloads`` and ``micro_batches``, and whether each entry's list is one of those there are.

    Args:
        sizes: Micro-batches of each list.
        num_lists: Lists of each frame.
        workload_of: List of each entry, counted from the first one of its frame.
        indexes: Of the lists' micro-batches, one list after the other.
        tokens: The same.
        squares: The same: sums of squares.
    """
    lists = np.zeros((len(sizes), 3))
    micro_batches = np.empty((len(tokens), 3))
    at = 0
    for number, size in enumerate(sizes):
        lists[number, 0] = size
        for place in range(at, at + size):
            micro_batches[place, 0] = indexes[place]
            micro_batches[place, 1] = tokens[place]
            micro_batches[place, 2] = squares[place]
            lists[number, 1] += tokens[place]
            lists[number, 2] += squares[place]
        at += size
    workloads = np.empty((len(workload_of), 3))
    num_entries = len(workload_of) * num_lists // max(len(sizes), 1)
    for entry, number in enumerate(workload_of):
        if not 0 <= number < num_lists:
            return workloads, micro_batches, False
        workloads[entry] = lists[entry // num_entries * num_lists + number]
    return workloads, micro_batches, True
