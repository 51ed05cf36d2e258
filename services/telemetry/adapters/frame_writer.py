"""Frames to the wire: in columns where samples came in blocks, entry by entry where they came as messages."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.services.common.raw_fields import raw_message_class
from evenkeel.services.telemetry.adapters.picked_columns import PickedColumns
from evenkeel.services.telemetry.domain.frame_entries import BlockRows, FrameEntries
from evenkeel.services.telemetry.domain.observed import ClosedFrame
from evenkeel.services.telemetry.domain.sample_block import COLUMNS, Names, SampleRow
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_FIELDS = pb.FrameColumns.DESCRIPTOR.fields_by_name
PACKED = [name for name in _FIELDS if name not in ("names", "traffic")]
_RawColumns = raw_message_class(pb.DESCRIPTOR, "FrameColumns", {"FrameColumns": [*PACKED, "traffic"]})
_RawObservation = raw_message_class(pb.DESCRIPTOR, "Observation", {"Frame": ["columns"], "FrameEntry": ["sample"]})
_DTYPES: dict[int, npt.DTypeLike] = {
    _FIELDS["wall_seconds"].type: np.dtype("<f8"),
    _FIELDS["ranks"].type: np.dtype("<i4"),
    _FIELDS["peak_memory_bytes"].type: np.dtype("<i8"),
    _FIELDS["has_loss"].type: np.dtype("?"),
}

# Jobs whose nodes and devices are remembered: some hundred bytes a rank.
_MAX_PLACES = 64

DTYPE_OF = {name: np.dtype(_DTYPES[_FIELDS[name].type]) for name in PACKED}


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
    picked, columns = PickedColumns(parts, size), _RawColumns()
    columns.ranks = picked.ranks.astype(np.int32).tobytes()
    names, columns.node_of, columns.device_of = _places_of(picked)
    columns.names.extend(names)
    for name, values, is_there in (
        ("incarnations", picked.incarnations, picked.has_incarnations),
        ("has_loss", picked.has[0], picked.has_any[0]),
        ("has_gradient_norm", picked.has[1], picked.has_any[1]),
        ("workload_of", picked.workload_of, picked.has_lists),
        ("workload_sizes", picked.sizes, True),
        ("micro_batch_indexes", picked.indexes, picked.indexes.any()),
        ("micro_batch_tokens", picked.tokens, picked.tokens.any()),
        ("micro_batch_sums_of_squares", picked.squares, picked.squares.any()),
    ):
        if is_there:  # a column of zeros is left out
            setattr(columns, name, values.tobytes())
    # Doubles are on the wire as they are here: the bytes of all columns at once, and each its part of them.
    numbers, raw, width = picked.numbers, picked.numbers.tobytes(), size * picked.numbers.itemsize
    for index, (name, here) in enumerate(zip(COLUMNS, picked.has_numbers.tolist(), strict=True)):
        if here and DTYPE_OF[name] == numbers.dtype:
            setattr(columns, name, raw[index * width : (index + 1) * width])
        elif here:
            setattr(columns, name, numbers[index].astype(DTYPE_OF[name]).tobytes())
    columns.traffic.extend(picked.traffic())
    return columns


def _places_of(picked: PickedColumns) -> tuple[Sequence[str], bytes, bytes]:
    """Names, and which of them are the nodes and the devices, as they are on the wire."""
    names = picked.names
    if names is not None:
        return places_on_wire(names, picked.nodes.tobytes(), picked.devices.tobytes())
    numbers: dict[str, int] = {}
    nodes, devices = (
        np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int32)[picked.order].tobytes()
        for texts in picked.place_names()
    )
    return list(numbers), nodes, devices


@lru_cache(maxsize=_MAX_PLACES)
def places_on_wire(names: Names, nodes: bytes, devices: bytes) -> tuple[list[str], bytes, bytes]:
    """A job's nodes and devices as they are on the wire, which are the same ones frame after frame."""
    numbers = np.frombuffer(nodes + devices, dtype=np.int32)
    used, which = np.unique(numbers, return_inverse=True)
    raw = which.astype(DTYPE_OF["node_of"]).tobytes()
    return [names[number] for number in used.tolist()], raw[: len(raw) // 2], raw[len(raw) // 2 :]
