"""State to bytes and back, without pickle: JSON with arrays as base64 of their little-endian bytes, compressed.

Numbers come back bit for bit, NaN included, so a detector that was restored decides exactly as one that ran through.
"""

import base64
import json
import zlib
from typing import Any

import numpy as np

FORMAT = 1
"""Raised when a stored state can no longer be read as before."""

_ARRAY = "__array__"


class StateError(ValueError):
    """Bytes that are not a state of this format."""


def state_to_bytes(state: dict[str, Any]) -> bytes:
    """The stored form of a state of plain values, lists, dicts and arrays."""
    text = json.dumps({"format": FORMAT, "state": state}, default=_array_to_plain, separators=(",", ":"))
    # Noise in base64 holds runs of nothing, but no repetitions: to look for these takes three times as long.
    packer = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return packer.compress(text.encode()) + packer.flush()


def state_from_bytes(stored: bytes) -> dict[str, Any]:
    """The state in what :func:`state_to_bytes` gave.

    Raises:
        StateError: The bytes are damaged or of another format; start without them and read the topic again.
    """
    try:
        found = json.loads(zlib.decompress(stored), object_hook=_plain_to_array)
    except (zlib.error, ValueError, TypeError) as error:
        raise StateError(f"snapshot cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("state"), dict):
        raise StateError(f"snapshot is not of format {FORMAT}")
    state: dict[str, Any] = found["state"]
    return state


def _array_to_plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        data = base64.b64encode(np.ascontiguousarray(little).tobytes()).decode()
        return {_ARRAY: little.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not part of a state")


def _plain_to_array(value: dict[str, Any]) -> object:
    if _ARRAY not in value:
        return value
    flat = np.frombuffer(base64.b64decode(value["data"]), dtype=np.dtype(value[_ARRAY]))
    return flat.reshape(value["shape"]).astype(flat.dtype.newbyteorder("="))
