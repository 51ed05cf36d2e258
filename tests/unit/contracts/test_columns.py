"""One table of columns: messages are what it says."""

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from evenkeel.contracts.columns import CHANNEL, ITERATION, LISTED, OPERATION, PROCESS, READING, STAMP, Column
from evenkeel.contracts.frames import MEMBER
from evenkeel.telemetry.v2 import batch_pb2, frames_pb2

_MEASURED = (*ITERATION, *LISTED, *OPERATION, *CHANNEL, *STAMP)
_WIRE_NAMES = ("double", "float", "bool", "enum", "string", "int32", "sint32", "int64", "uint32", "uint64")
_WIRE = {getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name for name in _WIRE_NAMES}


def _fields(message: Descriptor) -> dict[str, str]:
    assert all(field.is_repeated for field in message.fields if field.type in _WIRE and field.name != "epoch")
    return {field.name: _WIRE[field.type] for field in message.fields if field.type in _WIRE}


@pytest.mark.parametrize(
    ("message", "columns", "others"),
    [
        (batch_pb2.Batch.DESCRIPTOR, (*PROCESS, *_MEASURED, *READING), set()),
        (
            frames_pb2.Frames.DESCRIPTOR,
            (*_MEASURED, *READING),
            {"epoch", "closed_at_unix_seconds", "last_heard_at_unix_seconds", "reading_of"},
        ),
        (frames_pb2.Members.DESCRIPTOR, MEMBER, {"names"}),
    ],
)
def test_messages_have_the_columns_of_the_table(
    message: Descriptor, columns: tuple[Column, ...], others: set[str]
) -> None:
    fields = _fields(message)
    assert {column.name: column.wire for column in columns} == {
        name: wire for name, wire in fields.items() if name not in others
    }
    assert others <= fields.keys()


def test_the_signature_is_a_field_of_its_own_number() -> None:
    assert batch_pb2.Batch.DESCRIPTOR.fields_by_name["mac"].number == 31
