"""Frames to the wire: in columns where samples came in blocks, entry by entry where they came as messages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from services.common.raw_fields import raw_message_class
from services.telemetry.domain.observed import ArrivedSample, ClosedFrame
from services.telemetry.domain.sample_block import COLUMNS, Bools, Floats, Ints, SampleBlock, SampleRow, Workloads

_FIELDS = pb.FrameColumns.DESCRIPTOR.fields_by_name
_PACKED = [name for name in _FIELDS if name not in ("names", "traffic")]
_RawColumns = raw_message_class(pb.DESCRIPTOR, "FrameColumns", {"FrameColumns": [*_PACKED, "traffic"]})
_RawObservation = raw_message_class(pb.DESCRIPTOR, "Observation", {"Frame": ["columns"], "FrameEntry": ["sample"]})
_DTYPES: dict[int, npt.DTypeLike] = {
    _FIELDS["wall_seconds"].type: np.dtype("<f8"),
    _FIELDS["ranks"].type: np.dtype("<i4"),
    _FIELDS["peak_memory_bytes"].type: np.dtype("<i8"),
    _FIELDS["has_loss"].type: np.dtype("?"),
}

_DTYPE_OF = {name: np.dtype(_DTYPES[_FIELDS[name].type]) for name in _PACKED}


def frame_observation(job_id: str, sequence: int, closed: ClosedFrame) -> bytes:
    """The serialised observation of a closed frame; what its entries carry are rows of blocks, or sample messages."""
    message = _RawObservation(job_id=job_id, sequence=sequence)
    frame = message.frame
    frame.iteration = closed.iteration
    frame.epoch = closed.epoch
    frame.missing_ranks.extend(closed.missing_ranks)
    frame.closed_at_unix_seconds = closed.closed_at_seconds
    frame.last_sample_at_unix_seconds = closed.last_sample_at_seconds
    in_blocks = [entry for entry in closed.entries if isinstance(entry.payload, SampleRow)]
    if in_blocks:
        frame.columns = _columns(in_blocks).SerializeToString()
    if len(in_blocks) < len(closed.entries):
        for entry in closed.entries:
            if not isinstance(entry.payload, SampleRow):
                added = frame.entries.add(
                    rank=entry.rank, incarnation=entry.incarnation, node=entry.node, device=entry.device
                )
                added.sample = entry.payload.SerializeToString()
    raw: bytes = message.SerializeToString()
    return raw


def _columns(entries: Sequence[ArrivedSample]) -> Any:
    columns = _RawColumns()
    picked = _Picked(entries)
    _put(columns, "ranks", np.array([entry.rank for entry in entries]), always=True)
    _put(columns, "incarnations", np.array([entry.incarnation for entry in entries]))
    names: dict[str, int] = {}
    _put(columns, "node_of", np.array([names.setdefault(entry.node, len(names)) for entry in entries]))
    _put(columns, "device_of", np.array([names.setdefault(entry.device, len(names)) for entry in entries]))
    columns.names.extend(names)
    filled = np.count_nonzero(picked.numbers, axis=0).tolist()
    for name, column, here in zip(COLUMNS, picked.numbers.T, filled, strict=True):
        if here:
            _put(columns, name, column, always=True)
    _put(columns, "has_loss", picked.has_loss)
    _put(columns, "has_gradient_norm", picked.has_gradient_norm)
    _put(columns, "workload_of", picked.workload_of)
    lists = picked.workloads
    _put(columns, "workload_sizes", np.concatenate([each.sizes for each in lists]), always=True)
    _put(columns, "micro_batch_indexes", np.concatenate([each.indexes for each in lists]))
    _put(columns, "micro_batch_tokens", np.concatenate([each.tokens for each in lists]))
    _put(columns, "micro_batch_sums_of_squares", np.concatenate([each.sums_of_squares for each in lists]))
    columns.traffic.extend(picked.traffic)
    return columns


def _put(columns: Any, name: str, values: npt.NDArray[Any], *, always: bool = False) -> None:
    """A column of zeros is left out."""
    if always or np.count_nonzero(values):
        setattr(columns, name, values.astype(_DTYPE_OF[name]).tobytes())


class _Picked:
    """The rows of some entries out of their blocks, in the order of the entries."""

    def __init__(self, entries: Sequence[ArrivedSample]) -> None:
        size = len(entries)
        self.numbers: Floats = np.empty((size, len(COLUMNS)))
        self.has_loss: Bools = np.empty(size, dtype=np.bool_)
        self.has_gradient_norm: Bools = np.empty(size, dtype=np.bool_)
        self.workload_of: Ints = np.empty(size, dtype=np.int64)
        self.workloads: list[Workloads] = []
        self.traffic: list[bytes] = []
        self._num_workloads = 0
        payloads = [entry.payload for entry in entries]
        rows = np.array([row for _, row in payloads], dtype=np.int64)
        blocks = {id(block): block for block, _ in payloads}
        if len(blocks) == 1:
            self._pick(payloads[0].block, np.arange(size), rows)
        else:
            owners = np.array([id(block) for block, _ in payloads])
            for number, block in blocks.items():
                indexes = np.flatnonzero(owners == number)
                self._pick(block, indexes, rows[indexes])

    def _pick(self, block: SampleBlock, indexes: Ints, rows: Ints) -> None:
        self.numbers[indexes] = block.numbers[rows]
        self.has_loss[indexes] = block.has_loss[rows]
        self.has_gradient_norm[indexes] = block.has_gradient_norm[rows]
        used, which = np.unique(block.workload_of[rows], return_inverse=True)
        self.workload_of[indexes] = which + self._num_workloads
        self.workloads.append(block.workloads.picked(used))
        self._num_workloads += len(used)
        if block.traffic:
            if not self.traffic:
                self.traffic = [b""] * len(self.numbers)
            for index, row in zip(indexes.tolist(), rows.tolist(), strict=True):
                self.traffic[index] = block.traffic[row]
