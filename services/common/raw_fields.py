"""Reads and writes chosen fields of a protobuf message as the bytes that they are on the wire.

A packed field of fixed-width numbers is, on the wire, an array, and a submessage a run of bytes. Declaring such fields
as ``bytes`` reads the very same records, without a Python object for each number or submessage: numpy takes the arrays
as they are. The contract stays the one message; this is another way of looking at it.
"""

import sys
from collections.abc import Collection, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

if sys.byteorder != "little":  # the wire is, and arrays are taken from it as they are
    raise ImportError("this machine is big-endian: arrays of protobuf's wire format cannot be used as they are")

_FIELD = descriptor_pb2.FieldDescriptorProto
_SUBMESSAGE = _FIELD.TYPE_MESSAGE


def raw_message_class(file: FileDescriptor, message: str, raw: Mapping[str, Collection[str]]) -> Any:
    """A message class for the same records, with some fields as bytes.

    Args:
        file: The contract; it may import no other file.
        message: Name of the message that is wanted.
        raw: By name of a message of the file, its fields to leave as bytes: submessages (repeated ones stay repeated)
            and packed fields (which become one ``bytes``).

    Raises:
        ValueError: There is no such field, or it is neither.
    """
    copied = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(copied)
    found = {one.name: {field.name: field for field in one.field} for one in copied.message_type}
    for name, fields in raw.items():
        for field in fields:
            if field not in found.get(name, {}):
                raise ValueError(f"{file.package}.{name} has no field {field}; known: {sorted(found.get(name, ()))}")
            _make_raw(found[name][field])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(copied)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message}"))


def _make_raw(field: descriptor_pb2.FieldDescriptorProto) -> None:
    if field.type in (_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES):
        raise ValueError(f"{field.name} is text or bytes already")
    repeated = field.label == _FIELD.LABEL_REPEATED
    if field.type != _SUBMESSAGE:
        if not repeated:
            raise ValueError(f"{field.name} is a single number: its wire form is not delimited")
        field.label = _FIELD.LABEL_OPTIONAL
    field.type = _FIELD.TYPE_BYTES
    field.ClearField("type_name")
