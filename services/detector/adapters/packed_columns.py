"""Packed columns of numbers on the wire, taken as the bytes that they are."""

from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from evenkeel.services.common.kafka import RejectedRecordError
from evenkeel.services.common.raw_fields import raw_message_class
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

PACKED = {
    field.name: field
    for field in pb.FrameColumns.DESCRIPTOR.fields
    if field.name not in ("names", "traffic")  # these are not arrays of numbers
}
_RawColumns = raw_message_class(pb.DESCRIPTOR, "FrameColumns", {"FrameColumns": [*PACKED, "traffic"]})
_TYPES: dict[int, npt.DTypeLike] = {
    pb.FrameColumns.DESCRIPTOR.fields_by_name["wall_seconds"].type: np.dtype("<f8"),
    pb.FrameColumns.DESCRIPTOR.fields_by_name["ranks"].type: np.dtype("<i4"),
    pb.FrameColumns.DESCRIPTOR.fields_by_name["peak_memory_bytes"].type: np.dtype("<i8"),
    pb.FrameColumns.DESCRIPTOR.fields_by_name["has_loss"].type: np.dtype("?"),
}
_DTYPES = {name: np.dtype(_TYPES[field.type]) for name, field in PACKED.items()}


def read_columns(raw: bytes) -> Any:
    """The message ``FrameColumns`` with its columns, and each rank's traffic, as bytes.

    Raises:
        RejectedRecordError: It is none.
    """
    try:
        return _RawColumns.FromString(raw)
    except DecodeError as error:
        raise RejectedRecordError("malformed", f"not a FrameColumns: {error}") from error


def column(name: str, raw: bytes, wanted: int, num_frames: int = 1) -> npt.NDArray[Any]:
    """A column's values; read-only in any case: to compiled code that is a type of its own.

    Args:
        name: Which column.
        raw: Its bytes; nothing where all are 0.
        wanted: How many values a frame has.
        num_frames: How many frames; values of one frame are those of all.

    Raises:
        RejectedRecordError: There are more or fewer.
    """
    return np.frombuffer(_whole(name, raw, wanted, num_frames), dtype=_DTYPES[name])


def stacked(
    columns: Any, names: tuple[str, ...], wanted: int, dtype: npt.DTypeLike, num_frames: int = 1
) -> npt.NDArray[Any]:
    """Columns of one type below one another, ``[len(names), wanted * num_frames]``; otherwise as :func:`column`."""
    num_bytes = wanted * num_frames * np.dtype(dtype).itemsize
    raws: list[bytes] = [getattr(columns, name) for name in names]
    if [len(raw) for raw in raws] != [num_bytes] * len(raws):
        raws = [_whole(name, raw, wanted, num_frames) for name, raw in zip(names, raws, strict=True)]
    return np.frombuffer(b"".join(raws), dtype=dtype).reshape(len(names), wanted * num_frames)


def _whole(name: str, raw: bytes, wanted: int, num_frames: int) -> bytes:
    size = _DTYPES[name].itemsize
    if len(raw) == wanted * num_frames * size:
        return raw
    if not raw:
        return bytes(wanted * num_frames * size)
    if len(raw) == wanted * size:
        return raw * num_frames
    raise RejectedRecordError("bad_columns", f"{name} is {len(raw)} bytes, not {wanted} x {size}")
