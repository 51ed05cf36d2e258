"""Layouts and model specs to and from protobuf. Decoding validates: what comes out is usable or a ``LayoutError``."""

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from evenkeel.common.v1 import layout_pb2 as pb
from evenkeel.layouts.layout import Layout, LayoutError, Replica, Stage
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Order, Turn
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.sizes.mix import Mix

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_PASS_TO_PROTO = {
    Op.FORWARD: pb.PASS_FORWARD,
    Op.BACKWARD: pb.PASS_BACKWARD,
    Op.BACKWARD_INPUT: pb.PASS_BACKWARD_INPUT,
    Op.BACKWARD_WEIGHT: pb.PASS_BACKWARD_WEIGHT,
}
_PASS_FROM_PROTO = {number: op for op, number in _PASS_TO_PROTO.items()}


def layout_to_proto(layout: Layout) -> pb.Layout:
    """The wire form of a layout."""
    return pb.Layout(
        num_blocks=layout.num_blocks,
        standbys=layout.standbys,
        schedule=layout.schedule,
        schedules=layout.schedules,
        routes=[pb.Route(**asdict(route)) for route in layout.routes],
        routable=layout.routable,
        interleavable=layout.interleavable,
        whole=layout.whole,
        mix=None if layout.mix is None else pb.Mix(**asdict(layout.mix)),
        replicas=[
            pb.Replica(
                num_micro_batches=replica.num_micro_batches,
                stages=[
                    pb.Stage(**{name: getattr(stage, name) for name in Stage.__slots__}) for stage in replica.stages
                ],
                orders=[
                    pb.Order(
                        passes=[_PASS_TO_PROTO[turn.op] for turn in order],
                        places=[turn.place for turn in order],
                        stages=[turn.stage for turn in order],
                    )
                    for order in replica.orders
                ],
            )
            for replica in layout.replicas
        ],
    )


def layout_from_proto(message: pb.Layout) -> Layout:
    """The layout in a message.

    Raises:
        LayoutError: The message does not describe a valid layout.
    """
    return filled(
        Layout,
        message,
        schedule=message.schedule or "1f1b",
        routes=tuple(filled(Route, route) for route in message.routes),
        mix=_mix_from_proto(message.mix) if message.HasField("mix") else None,
        replicas=tuple(
            Replica(
                num_micro_batches=replica.num_micro_batches,
                stages=tuple(filled(Stage, stage) for stage in replica.stages),
                orders=tuple(_order_from_proto(order) for order in replica.orders),
            )
            for replica in message.replicas
        ),
    )


def filled(kind: type[T], message: Message, **other: Any) -> T:
    """A dataclass from the fields of a message, which are called as its own; repeated ones become tuples."""
    for name in [field.name for field in fields(kind) if field.init and field.name not in other]:
        value = getattr(message, name)
        other[name] = value if isinstance(value, int | float | str) else tuple(value)
    return kind(**other)


def _order_from_proto(order: pb.Order) -> Order:
    try:
        ops = [_PASS_FROM_PROTO[each] for each in order.passes]
        return tuple([Turn(*each) for each in zip(ops, order.places, order.stages, strict=True)])
    except (KeyError, ValueError) as error:
        raise LayoutError(f"an order has passes that this version does not know, or uneven lists: {error}") from error


def _mix_from_proto(message: pb.Mix) -> Mix:
    try:
        return filled(Mix, message)
    except ValueError as error:
        raise LayoutError(str(error)) from error


def model_to_proto(model: ModelSpec) -> pb.ModelSpec:
    """The wire form of a model spec."""
    return pb.ModelSpec(
        activation_bytes_per_token=model.activation_bytes_per_token,
        blocks=[pb.BlockCost(**asdict(block)) for block in model.blocks],
    )


def model_from_proto(message: pb.ModelSpec) -> ModelSpec:
    """The model spec in a message."""
    return ModelSpec(
        activation_bytes_per_token=message.activation_bytes_per_token,
        blocks=tuple(filled(BlockCost, block) for block in message.blocks),
    )
