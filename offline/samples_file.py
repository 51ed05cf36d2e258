"""Recorded topics (``--format samples``): what ranks sent, or what the telemetry service made of it.

The first line names the messages, ``evenkeel.telemetry.v1.Observation`` or ``evenkeel.telemetry.v1.Record``. Then
message after message, each preceded by its length in bytes as a protobuf varint (what protobuf calls delimited). The
first line may be missing; the first message then says what it is.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from offline.errors import RecordingError

Message = pb.Record | pb.Observation

OBSERVATION_LINE = f"{pb.Observation.DESCRIPTOR.full_name}\n".encode()
RECORD_LINE = f"{pb.Record.DESCRIPTOR.full_name}\n".encode()

_LARGEST_MESSAGE_BYTES = 64 * 1024 * 1024


def write_messages(file: BinaryIO, first_line: bytes, messages: Iterable[bytes]) -> int:
    """Writes a recording and returns how many messages went into it.

    Args:
        file: Where to.
        first_line: :data:`OBSERVATION_LINE` or :data:`RECORD_LINE`.
        messages: Serialized messages of that type.
    """
    file.write(first_line)
    count = 0
    for message in messages:
        file.write(_varint(len(message)) + message)
        count += 1
    return count


def read_messages(path: Path) -> Iterator[Message]:
    """The messages in a file, one after the other.

    Raises:
        RecordingError: The file is no such recording, is cut off, or holds something else; names the message.
    """
    try:
        with path.open("rb") as file:
            line = file.readline(max(len(OBSERVATION_LINE), len(RECORD_LINE)))
            kind: type[Message] | None = {OBSERVATION_LINE: pb.Observation, RECORD_LINE: pb.Record}.get(line)
            if kind is None:
                if line.startswith(b"evenkeel."):
                    raise RecordingError(f"{path} holds {line.strip()[:80]!r}, which is neither Observation nor Record")
                file.seek(0)
            number = 0
            for number, content in enumerate(_contents(path, file), start=1):
                kind = kind or _kind_of(content)
                yield _parsed(path, number, kind, content)
            if number == 0:
                raise RecordingError(f"{path} holds no messages")
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error


def _contents(path: Path, file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        at = file.tell()
        size = shift = 0
        while True:
            byte = file.read(1)
            if not byte and shift == 0:
                return
            if not byte or shift > 28:
                raise RecordingError(f"{path}: no length before message {number}, at byte {at}; is it a samples file?")
            size |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
        if size > _LARGEST_MESSAGE_BYTES:
            raise RecordingError(f"{path}: message {number} at byte {at} claims {size} bytes; is it a samples file?")
        content = file.read(size)
        if len(content) < size:
            raise RecordingError(f"{path} is cut off in message {number} at byte {at}; drop the end or record it again")
        yield content


def _kind_of(content: bytes) -> type[Message]:
    try:
        if pb.Observation.FromString(content).WhichOneof("observed") is not None:
            return pb.Observation
    except DecodeError:
        pass
    return pb.Record


def _parsed(path: Path, number: int, kind: type[Message], content: bytes) -> Message:
    try:
        message = kind.FromString(content)
    except DecodeError as error:
        raise RecordingError(f"{path}: message {number} is no {kind.DESCRIPTOR.full_name}: {error}") from error
    if not message.job_id:
        raise RecordingError(f"{path}: message {number} names no job; is it a samples file?")
    return message


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
