"""Frames to the wire: in columns where samples came in blocks, entry by entry where they came as messages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from services.common.raw_fields import raw_message_class
from services.telemetry.domain.frame_entries import BlockRows, FrameEntries
from services.telemetry.domain.observed import ClosedFrame
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
    entries = closed.entries if isinstance(closed.entries, FrameEntries) else FrameEntries(tuple(closed.entries))
    parts = entries.in_blocks()
    num_in_blocks = sum(len(part.rows) for part in parts)
    if num_in_blocks:
        frame.columns = _columns(parts, num_in_blocks).SerializeToString()
    if num_in_blocks < len(entries):
        for entry in entries:
            if not isinstance(entry.payload, SampleRow):
                added = frame.entries.add(
                    rank=entry.rank, incarnation=entry.incarnation, node=entry.node, device=entry.device
                )
                added.sample = entry.payload.SerializeToString()
    raw: bytes = message.SerializeToString()
    return raw


def _columns(parts: Sequence[BlockRows], size: int) -> Any:
    columns = _RawColumns()
    picked = _Picked(parts, size)
    _put(columns, "ranks", picked.ranks, always=True)
    _put(columns, "incarnations", picked.incarnations)
    _put(columns, "node_of", picked.node_of)
    _put(columns, "device_of", picked.device_of)
    columns.names.extend(picked.names)
    for name, column in zip(COLUMNS, np.ascontiguousarray(picked.numbers.T), strict=True):
        _put(columns, name, column)
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
    if always or values.any():
        setattr(columns, name, values.astype(_DTYPE_OF[name], copy=False).tobytes())


class _Picked:
    """Rows of some blocks, ascending by rank."""

    def __init__(self, parts: Sequence[BlockRows], size: int) -> None:
        ranks = np.concatenate([block.ranks[rows] for block, rows in parts])
        order = np.argsort(ranks)
        places = np.empty(size, dtype=np.int64)
        places[order] = np.arange(size)
        self.ranks: Ints = ranks[order]
        self.incarnations: Ints = np.empty(size, dtype=np.int64)
        self.node_of: Ints = np.empty(size, dtype=np.int64)
        self.device_of: Ints = np.empty(size, dtype=np.int64)
        self.numbers: Floats = np.empty((size, len(COLUMNS)))
        self.has_loss: Bools = np.empty(size, dtype=np.bool_)
        self.has_gradient_norm: Bools = np.empty(size, dtype=np.bool_)
        self.workload_of: Ints = np.empty(size, dtype=np.int64)
        self.workloads: list[Workloads] = []
        self.traffic: list[bytes] = []
        self.names: dict[str, int] = {}
        self._num_workloads = first = 0
        for block, rows in parts:
            self._pick(block, places[first : first + len(rows)], rows)
            first += len(rows)

    def _pick(self, block: SampleBlock, places: Ints, rows: Ints) -> None:
        self.incarnations[places] = block.incarnations[rows]
        self.node_of[places] = self._named(block.names, block.node_of[rows])
        self.device_of[places] = self._named(block.names, block.device_of[rows])
        self.numbers[places] = block.numbers[rows]
        self.has_loss[places] = block.has_loss[rows]
        self.has_gradient_norm[places] = block.has_gradient_norm[rows]
        used, which = np.unique(block.workload_of[rows], return_inverse=True)
        self.workload_of[places] = which + self._num_workloads
        self.workloads.append(block.workloads.picked(used))
        self._num_workloads += len(used)
        if block.traffic:
            if not self.traffic:
                self.traffic = [b""] * len(self.numbers)
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                self.traffic[place] = block.traffic[row]

    def _named(self, names: Sequence[str], numbers: Ints) -> Ints:
        """A block's numbers of names as the frame's."""
        used, which = np.unique(numbers, return_inverse=True)
        known = [self.names.setdefault(names[number], len(self.names)) for number in used.tolist()]
        return np.array(known, dtype=np.int64)[which]
