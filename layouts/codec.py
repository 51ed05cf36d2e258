"""Records to and from protobuf: they call their fields the same; what a message says in another way is given beside.

Of layouts and models decoding validates: what comes out is usable or a ``LayoutError``.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from evenkeel.common.v1 import layout_pb2 as pb
from evenkeel.layouts.layout import Layout, LayoutError, Replica
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Order, Turn
from evenkeel.layouts.sizes.mix import Mix

_PASS_TO_PROTO = {
    Op.FORWARD: pb.PASS_FORWARD,
    Op.BACKWARD: pb.PASS_BACKWARD,
    Op.BACKWARD_INPUT: pb.PASS_BACKWARD_INPUT,
    Op.BACKWARD_WEIGHT: pb.PASS_BACKWARD_WEIGHT,
}
_PASS_FROM_PROTO = {number: op for op, number in _PASS_TO_PROTO.items()}

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
    back: Any = _back
    for name, read in back(kind):
        if name not in said:
            value = getattr(message, name)
            said[name] = value if read is None else read(value)
    return kind(**said)


def number_of(enum: EnumDescriptor, word: str) -> int:
    """The number of a stored word; UNSPECIFIED for a word that this version does not know."""
    known = enum.values_by_name.get(_prefix(enum) + word.upper())
    return 0 if known is None else int(known.number)


def word_of(enum: EnumDescriptor, number: int) -> str:
    """The word to store for a number; a number that this version does not know keeps its number."""
    known = enum.values_by_number.get(number)
    return str(number) if known is None else known.name.removeprefix(_prefix(enum)).lower()


def timestamp(at: datetime) -> Timestamp:
    """A protobuf timestamp."""
    message = Timestamp()
    message.FromDatetime(at.astimezone(UTC))
    return message


def layout_to_proto(layout: Layout) -> pb.Layout:
    """The wire form of a layout."""
    return to_proto(pb.Layout, layout)


def layout_from_proto(message: pb.Layout) -> Layout:
    """The layout in a message.

    Raises:
        LayoutError: The message does not describe a valid layout.
    """
    return from_proto(
        Layout,
        message,
        schedule=message.schedule or "1f1b",
        mix=_mix_from_proto(message.mix) if message.HasField("mix") else None,
        replicas=tuple(
            from_proto(Replica, replica, orders=tuple(_order_from_proto(order) for order in replica.orders))
            for replica in message.replicas
        ),
    )


def model_to_proto(model: ModelSpec) -> pb.ModelSpec:
    """The wire form of a model spec."""
    return to_proto(pb.ModelSpec, model)


def model_from_proto(message: pb.ModelSpec) -> ModelSpec:
    """The model spec in a message."""
    return from_proto(ModelSpec, message)


def _replica_to_proto(replica: Replica) -> pb.Replica:
    orders = [
        pb.Order(
            passes=[_PASS_TO_PROTO[turn.op] for turn in order],
            places=[turn.place for turn in order],
            stages=[turn.stage for turn in order],
        )
        for order in replica.orders
    ]
    return to_proto(pb.Replica, replica, orders=orders)


def _order_from_proto(order: pb.Order) -> Order:
    try:
        ops = [_PASS_FROM_PROTO[each] for each in order.passes]
        return tuple([Turn(*each) for each in zip(ops, order.places, order.stages, strict=True)])
    except (KeyError, ValueError) as error:
        raise LayoutError(f"an order has passes that this version does not know, or uneven lists: {error}") from error


def _mix_from_proto(message: pb.Mix) -> Mix:
    try:
        return from_proto(Mix, message)
    except ValueError as error:
        raise LayoutError(str(error)) from error


_IN_ANOTHER_WAY: Mapping[type, Callable[[Any], Message]] = {Replica: _replica_to_proto, datetime: timestamp}


def _prefix(enum: EnumDescriptor) -> str:
    """With which the names of all its values begin."""
    return enum.values[0].name.removesuffix("UNSPECIFIED")


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
    convert = _IN_ANOTHER_WAY.get(type(value))
    return to_proto(kind, value) if convert is None else convert(value)


@lru_cache(maxsize=64)
def _back(kind: Any) -> list[tuple[str, Callable[[Any], Any] | None]]:
    hints = get_type_hints(kind)
    return [(field.name, _reader(hints[field.name])) for field in fields(kind) if field.init]


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    """Makes a record's field of a message's; None where it is the same."""
    if is_dataclass(hint):
        return partial(from_proto, hint)  # type: ignore[arg-type]
    items = get_args(hint)
    if not items or items[-1] is not Ellipsis:
        return None
    read = _reader(items[0])
    return tuple if read is None else lambda messages: tuple([read(one) for one in messages])
