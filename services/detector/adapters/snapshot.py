"""Snapshots of a job's detector: the tree of its fields as JSON, its arrays behind that, all compressed; no pickle.

Numbers come back bit for bit, NaN included, so a detector that was restored decides exactly as one that ran through. A
field that a snapshot does not have keeps what it began with, one that nobody knows any more is passed over.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from inspect import isabstract
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from evenkeel.services.detector.domain.memory.state import kept_fields

FORMAT = 4
"""Raised when a stored snapshot can no longer be read as before."""

_HEAD = struct.Struct("<4sII")
_MAGIC = b"ekds"
_ARRAY = "array"


class SnapshotError(ValueError):
    """Bytes that are no snapshot of this format, or of something else; start without them and read the topic again."""


def dump(state: Any) -> bytes:
    """The stored form of a dataclass.

    Raises:
        TypeError: A field holds something that is no state; the message says what.
    """
    arrays = bytearray()
    tree = json.dumps(_plain(state, arrays), separators=(",", ":")).encode()
    # Noise holds runs of nothing, but no repetitions: to look for these takes three times as long.
    packer = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return packer.compress(_HEAD.pack(_MAGIC, FORMAT, len(tree)) + tree + arrays) + packer.flush()


def load(state: Any, stored: bytes) -> None:
    """Takes what :func:`dump` gave over into a dataclass that has just begun.

    Raises:
        SnapshotError: The bytes are damaged, of another format or of another type; what was begun is of no use then.
    """
    try:
        raw = zlib.decompress(stored)
        magic, version, length = _HEAD.unpack_from(raw)
        tree = json.loads(raw[_HEAD.size : _HEAD.size + length])
    except (zlib.error, struct.error, ValueError) as error:
        raise SnapshotError(f"snapshot cannot be read: {error}") from error
    if (magic, version) != (_MAGIC, FORMAT):
        raise SnapshotError(f"snapshot is not of format {FORMAT}")
    _fill(state, tree, _Reader(memoryview(raw)[_HEAD.size + length :]), type(state).__name__)


def _plain(value: Any, arrays: bytearray) -> Any:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        begin = len(arrays)
        arrays += little.tobytes()
        return {_ARRAY: little.dtype.str, "shape": list(value.shape), "begin": begin}
    if is_dataclass(value):
        return {name: _plain(getattr(value, name), arrays) for name in kept_fields(value)}
    if isinstance(value, Mapping):
        return [[_plain(key, arrays), _plain(each, arrays)] for key, each in value.items()]
    if isinstance(value, AbstractSet):
        return [_plain(each, arrays) for each in sorted(value)]
    if isinstance(value, Sequence):
        return [_plain(each, arrays) for each in value]
    raise TypeError(f"{type(value).__name__} is not part of a state")


class _Reader:
    """Makes values of the types that fields are declared to have.

    Args:
        arrays: The bytes of all arrays.
    """

    def __init__(self, arrays: memoryview) -> None:
        self._arrays = arrays

    def value(self, kind: Any, plain: Any, known: Any, where: str) -> Any:
        """What ``plain`` says, as ``kind``; ``known`` is what the field holds, and stays if it is stateful itself."""
        origin, args = get_origin(kind) or kind, get_args(kind)
        if origin in (Union, UnionType):
            if plain is None and NoneType in args:
                return None
            (kind,) = (arm for arm in args if arm is not NoneType)
            return self.value(kind, plain, known, where)
        if origin is np.ndarray:
            return self._array(args[1], plain, where)
        if is_dataclass(origin):
            return self._object(origin, plain, known, where)
        if isinstance(origin, type) and issubclass(origin, Enum):
            return origin(plain)
        if origin in (bool, int, str, float):
            if type(plain) is not origin and not (origin is float and type(plain) is int):
                raise SnapshotError(f"{where} is {plain!r}, not a value of type {origin.__name__}")
            return float(plain) if origin is float else plain
        if not isinstance(plain, list):
            raise SnapshotError(f"{where} is {type(plain).__name__}, not a collection")
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping(args, plain, known, where)
        if origin is tuple and args[-1] is not Ellipsis:
            if len(plain) != len(args):
                raise SnapshotError(f"{where} has {len(plain)} values, not {len(args)}")
            return tuple(self.value(arm, each, None, where) for arm, each in zip(args, plain, strict=True))
        there = known if isinstance(known, list) and len(known) == len(plain) else [None] * len(plain)
        every = [self.value(args[0], each, one, where) for each, one in zip(plain, there, strict=True)]
        return origin(every) if origin in (list, set, frozenset) else tuple(every)

    def _array(self, dtype: Any, plain: Any, where: str) -> Any:
        if not isinstance(plain, dict) or _ARRAY not in plain:
            raise SnapshotError(f"{where} is not an array")
        (element,) = get_args(dtype)
        stored = np.dtype(plain[_ARRAY])
        if element is not Any and stored.newbyteorder("=") != np.dtype(element):
            raise SnapshotError(f"{where} is an array of {stored}, not of {np.dtype(element)}")
        shape, begin = tuple(plain["shape"]), plain["begin"]
        stop = begin + stored.itemsize * int(np.prod(shape, dtype=np.int64))
        flat = np.frombuffer(self._arrays[begin:stop], dtype=stored)
        return flat.reshape(shape).astype(stored.newbyteorder("="))

    def _mapping(self, kinds: tuple[Any, ...], plain: list[Any], known: Any, where: str) -> Any:
        of_key, of_value = kinds
        if isabstract(of_value):  # of objects that are there, each by its name
            for name, each in plain:
                if name in known:
                    _fill(known[name], each, self, f"{where}[{name}]")
            return known
        return {self.value(of_key, key, None, where): self.value(of_value, each, None, where) for key, each in plain}

    def _object(self, kind: Any, plain: Any, known: Any, where: str) -> Any:
        if known is not None and not kind.__dataclass_params__.frozen:
            _fill(known, plain, self, where)
            return known
        if not isinstance(plain, dict):
            raise SnapshotError(f"{where} is {type(plain).__name__}, not a {kind.__name__}")
        hints = _hints(kind)
        begins = {
            each.name: self.value(hints[each.name], plain[each.name], None, f"{where}.{each.name}")
            for each in fields(kind)
            if each.init and each.name in plain
        }
        found = kind(**begins)
        _fill(found, {name: each for name, each in plain.items() if name not in begins}, self, where)
        return found


def _fill(state: Any, plain: Any, reader: _Reader, where: str) -> None:
    if not isinstance(plain, dict):
        raise SnapshotError(f"{where} is {type(plain).__name__}, not a {type(state).__name__}")
    kind: Any = type(state)
    hints = _hints(kind)
    for name in kept_fields(state):
        if name in plain:
            known = getattr(state, name)
            value = reader.value(hints[name], plain[name], known, f"{where}.{name}")
            if value is not known:
                setattr(state, name, value)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
