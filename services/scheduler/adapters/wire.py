"""Records to and from protobuf: they call their fields the same; what a message says in another way is given beside."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec

M = TypeVar("M", bound=Message)
R = TypeVar("R")


def to_proto(kind: type[M], /, *records: object, **said: Any) -> M:
    """A message: each field is what ``said`` has for it, or the first of the records that has one of this name."""
    walk: Any = _walk
    for name, convert in walk(kind):
        if name not in said:
            value = _found(name, records)
            said[name] = value if convert is None or value is None else convert(value)
    return kind(**said)


def from_proto(kind: type[R], message: Message, /, **said: Any) -> R:
    """A record: each field is what ``said`` has for it, or what the message has under this name."""
    hashable: Any = kind
    hints = _hints(hashable)
    values = {name: _value(hint, getattr(message, name)) for name, hint in hints.items() if name not in said}
    return kind(**values, **said)


def number_of(enum: EnumDescriptor, word: str) -> int:
    """The number of a stored word; UNSPECIFIED for a word that this version does not know."""
    known = enum.values_by_name.get(enum.values[0].name.removesuffix("UNSPECIFIED") + word.upper())
    return 0 if known is None else int(known.number)


def timestamp(at: datetime) -> Timestamp:
    """A protobuf timestamp."""
    message = Timestamp()
    message.FromDatetime(at.astimezone(UTC))
    return message


_CONVERTERS: Mapping[type, Callable[[Any], Message]] = {
    Layout: layout_to_proto,
    ModelSpec: model_to_proto,
    datetime: timestamp,
}


def _found(name: str, records: tuple[object, ...]) -> Any:
    for record in records[:-1]:
        if hasattr(record, name):
            return getattr(record, name)
    return getattr(records[-1], name)


@lru_cache(maxsize=64)
def _walk(kind: Any) -> list[tuple[str, Callable[[Any], Any] | None]]:
    return [(field.name, _converter(field)) for field in kind.DESCRIPTOR.fields]


def _converter(field: Any) -> Callable[[Any], Any] | None:
    if field.enum_type is not None:
        return partial(number_of, field.enum_type)
    if field.message_type is None:
        return None
    return partial(_messages, GetMessageClass(field.message_type))


def _messages(kind: type[Message], value: Any) -> Any:
    if isinstance(value, tuple):
        return [_messages(kind, one) for one in value]
    convert = _CONVERTERS.get(type(value))
    return to_proto(kind, value) if convert is None else convert(value)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _value(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        return from_proto(hint, value)  # type: ignore[arg-type]
    if (items := get_args(hint)) and items[-1] is Ellipsis:
        return tuple([_value(items[0], item) for item in value])
    return value
