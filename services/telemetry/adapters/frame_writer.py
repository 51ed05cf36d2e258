"""Frames to the wire: in columns where samples came in blocks, entry by entry where they came as messages."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from services.common.raw_fields import raw_message_class
from services.telemetry.domain.frame_entries import BlockRows, FrameEntries
from services.telemetry.domain.observed import ClosedFrame
from services.telemetry.domain.sample_block import COLUMNS, Ints, Names, SampleRow, Workloads

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

# Jobs whose nodes and devices are remembered: some hundred bytes a rank.
_MAX_PLACES = 64

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
    picked, columns = _Picked(parts), _RawColumns()
    _put(columns, "ranks", picked.ranks, always=True)
    _put(columns, "incarnations", picked.column("incarnations"))
    names, node_of, device_of = picked.places()
    columns.names.extend(names)
    columns.node_of, columns.device_of = node_of, device_of
    numbers = np.ascontiguousarray(picked.column("numbers").T)
    # Doubles are on the wire as they are here: the bytes of all columns at once, and each its part of them.
    raw, width = numbers.tobytes(), size * numbers.itemsize
    for index, (name, here) in enumerate(zip(COLUMNS, (numbers != 0.0).any(axis=1).tolist(), strict=True)):
        if here and _DTYPE_OF[name] == numbers.dtype:
            setattr(columns, name, raw[index * width : (index + 1) * width])
        elif here:
            _put(columns, name, numbers[index], always=True)
    _put(columns, "has_loss", picked.column("has_loss"))
    _put(columns, "has_gradient_norm", picked.column("has_gradient_norm"))
    workload_of, lists = picked.workloads()
    _put(columns, "workload_of", workload_of)
    _put(columns, "workload_sizes", np.concatenate([each.sizes for each in lists]), always=True)
    _put(columns, "micro_batch_indexes", np.concatenate([each.indexes for each in lists]))
    _put(columns, "micro_batch_tokens", np.concatenate([each.tokens for each in lists]))
    _put(columns, "micro_batch_sums_of_squares", np.concatenate([each.sums_of_squares for each in lists]))
    columns.traffic.extend(picked.traffic())
    return columns


def _put(columns: Any, name: str, values: npt.NDArray[Any], *, always: bool = False) -> None:
    """A column of zeros is left out."""
    if always or np.count_nonzero(values):
        setattr(columns, name, values.astype(_DTYPE_OF[name], copy=False).tobytes())


class _Picked:
    """Rows of some blocks, ascending by rank."""

    def __init__(self, parts: Sequence[BlockRows]) -> None:
        ranks = np.concatenate([block.ranks[rows] for block, rows in parts])
        order: Ints | slice = np.argsort(ranks)
        self.ranks: Ints = ranks[order]
        if len(parts) == 1:
            parts, order = [BlockRows(parts[0].block, parts[0].rows[order])], slice(None)
        self._parts, self._order = parts, order

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of the blocks, by its name there."""
        found: npt.NDArray[Any] = self._ordered([getattr(block, name)[rows] for block, rows in self._parts])
        return found

    def places(self) -> tuple[Sequence[str], bytes, bytes]:
        """Names, and which of them are the nodes and the devices, as they are on the wire."""
        names = self._parts[0].block.names
        if all(block.names is names for block, _ in self._parts):
            return _places(names, self.column("node_of").tobytes(), self.column("device_of").tobytes())
        numbers: dict[str, int] = {}
        found = []
        for column in ("node_of", "device_of"):
            texts = [block.names[each] for block, rows in self._parts for each in getattr(block, column)[rows].tolist()]
            known = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=_DTYPE_OF[column])
            found.append(known[self._order].tobytes())
        return list(numbers), found[0], found[1]

    def workloads(self) -> tuple[Ints, list[Workloads]]:
        """Which list of micro-batches is each row's, and the lists, each once a block."""
        lists, which, first = [], [], 0
        for block, rows in self._parts:
            used, places = np.unique(block.workload_of[rows], return_inverse=True)
            lists.append(block.workloads.picked(used))
            which.append(places + first)
            first += len(used)
        return self._ordered(which), lists

    def traffic(self) -> list[bytes]:
        """Each row's traffic; nothing where there is none at all."""
        if not any(block.traffic for block, _ in self._parts):
            return []
        told = [block.traffic[row] if block.traffic else b"" for block, rows in self._parts for row in rows.tolist()]
        return [told[place] for place in np.arange(len(told))[self._order].tolist()]

    def _ordered(self, columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return columns[0] if len(columns) == 1 else np.concatenate(columns)[self._order]


@lru_cache(maxsize=_MAX_PLACES)
def _places(names: Names, nodes: bytes, devices: bytes) -> tuple[list[str], bytes, bytes]:
    """A job's nodes and devices as they are on the wire, which are the same ones frame after frame."""
    numbers = np.frombuffer(nodes + devices, dtype=np.int64)
    used, which = np.unique(numbers, return_inverse=True)
    raw = which.astype(_DTYPE_OF["node_of"]).tobytes()
    return [names[number] for number in used.tolist()], raw[: len(raw) // 2], raw[len(raw) // 2 :]
