"""Columns of a frame message: packed numbers, taken as the bytes that they are on the wire."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from numeric.arrays import Bytes, Floats, Ints
from numeric.compiled import compiled
from services.common.kafka import RejectedRecordError
from services.common.raw_fields import raw_message_class
from services.detector.adapters.frame_rows import FrameRows, costs_of

_PACKED = {
    field.name: field
    for field in pb.FrameColumns.DESCRIPTOR.fields
    if field.name not in ("names", "traffic")  # these are not arrays of numbers
}
_RawColumns = raw_message_class(pb.DESCRIPTOR, "FrameColumns", {"FrameColumns": [*_PACKED, "traffic"]})
_TYPES: dict[int, npt.DTypeLike] = {
    pb.FrameColumns.DESCRIPTOR.fields_by_name["wall_seconds"].type: np.dtype("<f8"),
    pb.FrameColumns.DESCRIPTOR.fields_by_name["ranks"].type: np.dtype("<i4"),
    pb.FrameColumns.DESCRIPTOR.fields_by_name["peak_memory_bytes"].type: np.dtype("<i8"),
    pb.FrameColumns.DESCRIPTOR.fields_by_name["has_loss"].type: np.dtype("?"),
}
_DTYPES = {name: np.dtype(_TYPES[field.type]) for name, field in _PACKED.items()}
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


class _Seats(NamedTuple):
    """Who sits where in a frame, the same in most frames of a job: shared, and not to be written to."""

    ranks: Ints
    incarnations: Ints
    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    positions: Ints
    costs: Floats


def rows_of_columns(raw: bytes, epoch: int) -> FrameRows:
    """The entries that are in columns, in their order.

    Args:
        raw: The message ``FrameColumns``.
        epoch: Of the frame, and so of all of them.

    Raises:
        RejectedRecordError: The columns do not fit together.
    """
    try:
        columns: Any = _RawColumns.FromString(raw)
    except DecodeError as error:
        raise RejectedRecordError("malformed", f"not a FrameColumns: {error}") from error
    num_entries = len(columns.ranks) // 4
    seats = _seats(tuple(columns.names), *[getattr(columns, name) for name in _SEAT_COLUMNS])
    numbers = _stacked(columns, _MEASURED_COLUMNS, num_entries, np.float64)
    flags = _stacked(columns, _FLAG_COLUMNS, num_entries, np.uint8)
    seconds, losses, gradient_norms = _measured(numbers, flags)
    workloads, micro_batches = _workloads(columns, num_entries)
    return FrameRows(
        ranks=seats.ranks,
        incarnations=seats.incarnations,
        nodes=seats.nodes,
        devices=seats.devices,
        epochs=np.full(num_entries, epoch, dtype=np.int64),
        marks=_array("marks", columns.marks, num_entries).astype(np.int64),
        seconds=seconds,
        positions=seats.positions,
        costs=seats.costs,
        workloads=workloads,
        micro_batches=micro_batches,
        losses=losses,
        has_loss=flags[0] != 0,  # any number but 0 is true on the wire
        gradient_norms=gradient_norms,
        has_gradient_norm=flags[1] != 0,
        started_at_unix_seconds=numbers[-1],
        traffic=_traffic(columns, num_entries),
    )


@lru_cache(maxsize=_MAX_SEATS)
def _seats(names: tuple[str, ...], ranks: bytes, *raws: bytes) -> _Seats:
    """The seats of a frame.

    Args:
        names: Nodes and devices.
        ranks: First of ``_SEAT_COLUMNS``, as it is on the wire.
        raws: The others.

    Raises:
        RejectedRecordError: They do not fit together.
    """
    size = len(ranks) // 4
    columns = {name: _array(name, raw, size) for name, raw in zip(_SEAT_COLUMNS, (ranks, *raws), strict=True)}
    texts = []
    for name in ("node_of", "device_of"):
        indexes = columns[name]
        if len(indexes) and (int(indexes.min()) < 0 or int(indexes.max()) >= (len(names) or 1)):
            raise RejectedRecordError("bad_columns", f"{name} points beyond the {len(names) or 1} there are")
        texts.append(tuple([(names or ("",))[index] for index in indexes.tolist()]))
    positions = np.column_stack([columns[name] for name in ("replicas", "stages", "shards")]).astype(np.int64)
    flops = np.column_stack([columns[name] for name in _SEAT_COLUMNS[-3:]])
    seats = _Seats(
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


def _stacked(columns: Any, names: tuple[str, ...], num_entries: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Columns of one type below one another, ``[len(names), num_entries]``; those that are left out are zeros."""
    num_bytes = num_entries * np.dtype(dtype).itemsize
    raws: list[bytes] = [getattr(columns, name) for name in names]
    if [len(raw) for raw in raws] != [num_bytes] * len(raws):
        for name, raw in zip(names, raws, strict=True):
            _check_size(name, raw, num_entries)
        raws = [raw or bytes(num_bytes) for raw in raws]
    return np.frombuffer(b"".join(raws), dtype=dtype).reshape(len(names), num_entries)


def _array(name: str, raw: bytes, wanted: int) -> npt.NDArray[Any]:
    """A column, of zeros where it is left out; read-only in any case: to compiled code that is a type of its own."""
    _check_size(name, raw, wanted)
    return np.frombuffer(raw or bytes(wanted * _DTYPES[name].itemsize), dtype=_DTYPES[name])


def _check_size(name: str, raw: bytes, wanted: int) -> None:
    size = _DTYPES[name].itemsize
    if raw and len(raw) != wanted * size:
        raise RejectedRecordError("bad_columns", f"{name} is {len(raw)} bytes, not {wanted} x {size}")


def _workloads(columns: Any, num_entries: int) -> tuple[Floats, Floats]:
    """Micro-batches, tokens and sum of squares of each entry; index, tokens and sum of squares of micro-batches."""
    raw_sizes: bytes = columns.workload_sizes
    if not raw_sizes:
        return np.zeros((num_entries, 3)), np.empty((0, 3))
    sizes = _array("workload_sizes", raw_sizes, len(raw_sizes) // 4)
    num_micro_batches = _total(sizes)
    if not 0 <= num_micro_batches <= _MOST_MICRO_BATCHES:
        raise RejectedRecordError("bad_columns", "lists of micro-batches are less than empty, or longer than can be")
    named = [
        _array(name, getattr(columns, name), num_micro_batches)
        for name in ("micro_batch_indexes", "micro_batch_tokens", "micro_batch_sums_of_squares")
    ]
    workloads, micro_batches, fits = _dealt(sizes, _array("workload_of", columns.workload_of, num_entries), *named)
    if not fits:
        raise RejectedRecordError("bad_columns", f"workload_of points beyond the {len(sizes)} there are")
    return workloads, micro_batches


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
def _dealt(sizes: _Raw, workload_of: _Raw, indexes: _Raw, tokens: _Raw, squares: Floats) -> tuple[Floats, Floats, bool]:
    """``FrameRows.workloads`` and ``micro_batches``, and whether each entry's list is one of those there are.

    Args:
        sizes: Micro-batches of each list.
        workload_of: List of each entry.
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
    for entry, number in enumerate(workload_of):
        if not 0 <= number < len(sizes):
            return workloads, micro_batches, False
        workloads[entry] = lists[number]
    return workloads, micro_batches, True
