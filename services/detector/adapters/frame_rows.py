"""The entries of a frame message as arrays, whichever way it carries them: entry by entry, or in columns."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

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
_DTYPES = {name: _TYPES[field.type] for name, field in _PACKED.items()}


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
        flops: Columns forward per token, forward per squared length, backward multiple.
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
    flops: Floats
    workloads: Floats
    micro_batches: Floats
    losses: Floats
    has_loss: Bools
    gradient_norms: Floats
    has_gradient_norm: Bools
    started_at_unix_seconds: Floats
    traffic: Sequence[pb.Traffic]


def rows_of(frame: pb.Frame) -> FrameRows:
    """All entries of a frame, ascending by rank.

    Raises:
        RejectedRecordError: A rank appears twice or is negative, or the columns do not fit together.
    """
    in_columns = frame.HasField("columns")
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
        nodes=[entry.node for entry in entries],
        devices=[entry.device for entry in entries],
        epochs=np.array([sample.epoch for sample in samples], dtype=np.int64),
        marks=np.array([sample.mark for sample in samples], dtype=np.int64),
        seconds=np.column_stack([numbers[:, :7], [sample.compute.data for sample in samples]]).reshape(-1, 8),
        positions=numbers[:, 7:10].astype(np.int64),
        flops=numbers[:, 10:13],
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

    def __init__(self, columns: pb.FrameColumns) -> None:
        self._raw: Any = _RawColumns.FromString(columns.SerializeToString())
        self.names: list[str] = list(self._raw.names)
        self.num_entries = len(self._raw.ranks) // 4

    def array(self, name: str, length: int | None = None) -> npt.NDArray[Any]:
        raw: bytes = getattr(self._raw, name)
        dtype, wanted = np.dtype(_DTYPES[name]), self.num_entries if length is None else length
        if not raw:
            return np.zeros(wanted, dtype=dtype)
        if len(raw) != wanted * dtype.itemsize:
            raise RejectedRecordError("bad_columns", f"{name} is {len(raw)} bytes, not {wanted} x {dtype.itemsize}")
        return np.frombuffer(raw, dtype=dtype)

    def stacked(self, *names: str) -> Floats:
        return np.column_stack([self.array(name) for name in names]).astype(np.float64, copy=False)

    def texts(self, name: str) -> list[str]:
        names = self.names or [""]
        indexes = self.array(name)
        _check_indexes(name, indexes, len(names))
        return [names[index] for index in indexes.tolist()]

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


def _of_columns(frame: pb.Frame) -> FrameRows:
    columns = _Columns(frame.columns)
    has_loss, has_norm = columns.array("has_loss"), columns.array("has_gradient_norm")
    workloads, micro_batches = columns.workloads()
    seconds = np.empty((columns.num_entries, 8))
    seconds[:, 0] = columns.array("forward_seconds") + columns.array("backward_seconds")
    seconds[:, 1] = columns.array("optimizer_seconds") + columns.array("data_seconds")
    seconds[:, 7] = columns.array("data_seconds")
    seconds[:, 2:7] = columns.stacked(
        "wall_seconds", "tensor_wait_seconds", "pipeline_wait_seconds", "gradient_wait_seconds", "vote_wait_seconds"
    )
    return FrameRows(
        ranks=columns.array("ranks").astype(np.int64),
        incarnations=columns.array("incarnations").astype(np.int64),
        nodes=columns.texts("node_of"),
        devices=columns.texts("device_of"),
        epochs=np.full(columns.num_entries, frame.epoch, dtype=np.int64),
        marks=columns.array("marks").astype(np.int64),
        seconds=seconds,
        positions=columns.stacked("replicas", "stages", "shards").astype(np.int64),
        flops=columns.stacked("forward_flops_per_token", "forward_flops_per_squared_length", "backward_multiple"),
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
        values[field.name] = [*parts[0], *parts[1]] if isinstance(parts[0], list) else np.concatenate(parts)
    return FrameRows(**values)


def _picked(rows: FrameRows, order: Ints) -> FrameRows:
    values: dict[str, Any] = {}
    for field in fields(FrameRows):
        value = getattr(rows, field.name)
        if isinstance(value, list):
            values[field.name] = [value[index] for index in order.tolist()] if value else []
        elif field.name == "micro_batches":
            values[field.name] = value
        else:
            values[field.name] = value[order]
    return FrameRows(**values)
