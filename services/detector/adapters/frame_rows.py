"""The entries of a frame message as arrays, whichever way it carries them: entry by entry, or in columns."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from services.common.kafka import RejectedRecordError
from services.common.raw_fields import raw_message_class

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
# Jobs whose seats are remembered: some 150 bytes a rank.
_MAX_SEATS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRows:
    """One row an entry.

    Attributes:
        ranks: Rank.
        incarnations: Its incarnation.
        nodes: Node it ran on.
        devices: Device it ran on.
        epochs: Epoch of the sample.
        marks: Number of the sample's mark.
        seconds: Columns compute, other, wall, waiting for tensor, pipeline, gradient, vote; then input, in other.
        positions: Columns replica, stage, shard.
        costs: Columns forward flops per token and per squared length, passes, whether they are known, key of the share.
        workloads: Columns micro-batches, tokens, sum of squares.
        micro_batches: One row each time that somebody names one: index, tokens, sum of squares.
        losses: NaN where none.
        has_loss: Whether one was reported.
        gradient_norms: NaN where none.
        has_gradient_norm: Whether one was reported.
        started_at_unix_seconds: Start of the iteration by the rank's clock.
        traffic: Operations with other ranks, empty where the rank measures none; no items where nobody does.
    """

    ranks: Ints
    incarnations: Ints
    nodes: Sequence[str]
    devices: Sequence[str]
    epochs: Ints
    marks: Ints
    seconds: Floats
    positions: Ints
    costs: Floats
    workloads: Floats
    micro_batches: Floats
    losses: Floats
    has_loss: Bools
    gradient_norms: Floats
    has_gradient_norm: Bools
    started_at_unix_seconds: Floats
    traffic: Sequence[pb.Traffic]


def rows_of(frame: Any) -> FrameRows:
    """All entries of a frame, ascending by rank.

    Args:
        frame: The message, its columns as the bytes that they are on the wire.

    Raises:
        RejectedRecordError: A rank appears twice or is negative, or the columns do not fit together.
    """
    in_columns = bool(frame.columns)
    rows = _of_columns(frame) if in_columns else _of_entries(frame.entries)
    if in_columns and frame.entries:
        rows = _joined(rows, _of_entries(frame.entries))
    rises = np.diff(rows.ranks) > 0
    if not bool(rises.all()):
        rows = _picked(rows, np.argsort(rows.ranks, kind="stable"))
        rises = np.diff(rows.ranks) > 0
    if not bool(rises.all()) or (len(rows.ranks) and rows.ranks[0] < 0):
        raise RejectedRecordError("bad_ranks", f"ranks of frame {frame.iteration} are negative or appear twice")
    return rows


def _of_entries(entries: Iterable[pb.FrameEntry]) -> FrameRows:
    entries = list(entries)
    samples = [entry.sample for entry in entries]
    numbers = np.array([_numbers(sample) for sample in samples], dtype=np.float64).reshape(len(samples), 20)
    return FrameRows(
        ranks=np.array([entry.rank for entry in entries], dtype=np.int64),
        incarnations=np.array([entry.incarnation for entry in entries], dtype=np.int64),
        nodes=[sys.intern(entry.node) for entry in entries],
        devices=[sys.intern(entry.device) for entry in entries],
        epochs=np.array([sample.epoch for sample in samples], dtype=np.int64),
        marks=np.array([sample.mark for sample in samples], dtype=np.int64),
        seconds=np.column_stack([numbers[:, :7], [sample.compute.data for sample in samples]]).reshape(-1, 8),
        positions=numbers[:, 7:10].astype(np.int64),
        costs=_costs(numbers[:, 10:13], numbers[:, 8]),
        workloads=numbers[:, 13:16],
        micro_batches=_named_by(samples),
        losses=numbers[:, 16],
        has_loss=numbers[:, 17] > 0,
        gradient_norms=numbers[:, 18],
        has_gradient_norm=numbers[:, 19] > 0,
        started_at_unix_seconds=np.array([sample.started_at_unix_seconds for sample in samples], dtype=np.float64),
        traffic=[sample.traffic for sample in samples],
    )


def _numbers(sample: pb.Sample) -> Sequence[float]:
    compute, waiting, position = sample.compute, sample.waiting, sample.position
    has_loss, has_norm = sample.HasField("loss"), sample.HasField("gradient_norm")
    tokens = squares = 0.0
    for micro_batch in sample.micro_batches:
        tokens += micro_batch.tokens
        squares += micro_batch.sum_of_squares
    return (
        compute.forward + compute.backward,
        compute.optimizer + compute.data,
        sample.wall_seconds,
        waiting.tensor,
        waiting.pipeline,
        waiting.gradient,
        waiting.vote,
        position.replica,
        position.stage,
        position.shard,
        position.forward_flops_per_token,
        position.forward_flops_per_squared_length,
        position.backward_multiple,
        len(sample.micro_batches),
        tokens,
        squares,
        sample.loss if has_loss else math.nan,
        has_loss,
        sample.gradient_norm if has_norm else math.nan,
        has_norm,
    )


def _named_by(samples: Iterable[pb.Sample]) -> Floats:
    named = [(one.index, one.tokens, one.sum_of_squares) for sample in samples for one in sample.micro_batches]
    return np.array(named, dtype=np.float64).reshape(-1, 3)


class _Columns:
    """The arrays of one message, each of the wanted length."""

    def __init__(self, raw: bytes) -> None:
        try:
            self._raw: Any = _RawColumns.FromString(raw)
        except DecodeError as error:
            raise RejectedRecordError("malformed", f"not a FrameColumns: {error}") from error
        self.num_entries = len(self._raw.ranks) // 4

    def array(self, name: str, length: int | None = None) -> npt.NDArray[Any]:
        return _array(name, getattr(self._raw, name), self.num_entries if length is None else length)

    def seats(self) -> "_Seats":
        return _seats(tuple(self._raw.names), *(getattr(self._raw, name) for name in _SEAT_COLUMNS))

    def traffic(self) -> list[pb.Traffic]:
        raw: list[bytes] = list(self._raw.traffic)
        if raw and len(raw) != self.num_entries:
            raise RejectedRecordError("bad_columns", f"{len(raw)} traffics of {self.num_entries} entries")
        return [pb.Traffic.FromString(each) for each in raw]

    def workloads(self) -> tuple[Floats, Floats]:
        """Micro-batches, tokens and sum of squares of each entry; index, tokens and sum of squares of micro-batches."""
        sizes = self.array("workload_sizes", len(self._raw.workload_sizes) // 4)
        if len(sizes) == 0:
            return np.zeros((self.num_entries, 3)), np.empty((0, 3))
        if bool((sizes < 0).any()):
            raise RejectedRecordError("bad_columns", "a list of micro-batches is less than empty")
        total, owners = int(sizes.sum()), np.repeat(np.arange(len(sizes)), sizes)
        tokens = self.array("micro_batch_tokens", total)
        squares = self.array("micro_batch_sums_of_squares", total)
        lists = np.column_stack(
            [
                sizes,
                np.bincount(owners, tokens, minlength=len(sizes)),
                np.bincount(owners, squares, minlength=len(sizes)),
            ]
        )
        indexes = self.array("workload_of")
        _check_indexes("workload_of", indexes, len(sizes))
        return lists[indexes], np.column_stack([self.array("micro_batch_indexes", total), tokens, squares])


class _Seats(NamedTuple):
    """Who sits where in a frame, the same in most frames of a job: shared, and not to be written to."""

    ranks: Ints
    incarnations: Ints
    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    positions: Ints
    costs: Floats


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
        _check_indexes(name, columns[name], len(names) or 1)
        texts.append(tuple([(names or ("",))[index] for index in columns[name].tolist()]))
    positions = np.column_stack([columns[name] for name in ("replicas", "stages", "shards")]).astype(np.int64)
    flops = np.column_stack([columns[name] for name in _SEAT_COLUMNS[-3:]])
    seats = _Seats(
        ranks=columns["ranks"].astype(np.int64),
        incarnations=columns["incarnations"].astype(np.int64),
        nodes=texts[0],
        devices=texts[1],
        positions=positions,
        costs=_costs(flops, positions[:, 1]),
    )
    for each in (seats.ranks, seats.incarnations, seats.positions, seats.costs):
        each.setflags(write=False)
    return seats


def _array(name: str, raw: bytes, wanted: int) -> npt.NDArray[Any]:
    dtype = _DTYPES[name]
    if not raw:
        return np.zeros(wanted, dtype=dtype)
    if len(raw) != wanted * dtype.itemsize:
        raise RejectedRecordError("bad_columns", f"{name} is {len(raw)} bytes, not {wanted} x {dtype.itemsize}")
    if dtype == np.bool_:  # any number but 0 is true on the wire, and none but 1 in an array
        return np.frombuffer(raw, dtype=np.uint8).astype(np.bool_)
    return np.frombuffer(raw, dtype=dtype)


def _costs(flops: Floats, stages: npt.NDArray[Any]) -> Floats:
    """``FrameRows.costs`` of columns forward per token, forward per squared length, backward multiple."""
    per_token, per_square, multiple = flops.T
    with np.errstate(over="ignore", invalid="ignore"):  # what is beyond numbers is thrown out where it is used
        passes = 1.0 + multiple
        known = (per_token > 0) | (per_square > 0)
        keys = np.where(known, passes * (per_token + math.pi * per_square), -1.0 - stages)
    return np.column_stack([per_token, per_square, passes, known, keys])


def _of_columns(frame: Any) -> FrameRows:
    columns = _Columns(frame.columns)
    seats = columns.seats()
    has_loss, has_norm = columns.array("has_loss"), columns.array("has_gradient_norm")
    workloads, micro_batches = columns.workloads()
    seconds, data_seconds = np.empty((columns.num_entries, 8)), columns.array("data_seconds")
    seconds[:, 0] = columns.array("forward_seconds") + columns.array("backward_seconds")
    seconds[:, 1] = columns.array("optimizer_seconds") + data_seconds
    for place, name in enumerate(("wall", "tensor_wait", "pipeline_wait", "gradient_wait", "vote_wait"), start=2):
        seconds[:, place] = columns.array(f"{name}_seconds")
    seconds[:, 7] = data_seconds
    return FrameRows(
        ranks=seats.ranks,
        incarnations=seats.incarnations,
        nodes=seats.nodes,
        devices=seats.devices,
        epochs=np.full(columns.num_entries, frame.epoch, dtype=np.int64),
        marks=columns.array("marks").astype(np.int64),
        seconds=seconds,
        positions=seats.positions,
        costs=seats.costs,
        workloads=workloads,
        micro_batches=micro_batches,
        losses=np.where(has_loss, columns.array("losses"), np.nan),
        has_loss=has_loss,
        gradient_norms=np.where(has_norm, columns.array("gradient_norms"), np.nan),
        has_gradient_norm=has_norm,
        started_at_unix_seconds=columns.array("started_at_unix_seconds"),
        traffic=columns.traffic(),
    )


def _check_indexes(name: str, indexes: npt.NDArray[Any], size: int) -> None:
    if len(indexes) and (int(indexes.min()) < 0 or int(indexes.max()) >= size):
        raise RejectedRecordError("bad_columns", f"{name} points beyond the {size} there are")


def _joined(one: FrameRows, other: FrameRows) -> FrameRows:
    one, other = (
        rows if rows.traffic else replace(rows, traffic=[pb.Traffic()] * len(rows.ranks)) for rows in (one, other)
    )
    values: dict[str, Any] = {}
    for field in fields(FrameRows):
        parts = getattr(one, field.name), getattr(other, field.name)
        values[field.name] = [*parts[0], *parts[1]] if isinstance(parts[0], Sequence) else np.concatenate(parts)
    return FrameRows(**values)


def _picked(rows: FrameRows, order: Ints) -> FrameRows:
    values: dict[str, Any] = {}
    for field in fields(FrameRows):
        value = getattr(rows, field.name)
        if isinstance(value, Sequence):
            values[field.name] = [value[index] for index in order.tolist()] if value else []
        elif field.name == "micro_batches":
            values[field.name] = value
        else:
            values[field.name] = value[order]
    return FrameRows(**values)
