"""Recorded topics (``--format samples``): what ranks sent, or what the telemetry service made of it.

The first line names the messages, ``evenkeel.telemetry.v2.Observation`` or ``evenkeel.telemetry.v2.Batch``. Then
message after message, each preceded by its length in bytes as a protobuf varint (what protobuf calls delimited). The
first line may be missing; the first message then says what it is.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from google.protobuf.message import DecodeError

from evenkeel.offline.errors import RecordingError
from evenkeel.offline.tables.skipped import Skipped
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.telemetry.v2.frames_pb2 import Observation

Message = Batch | Observation

OBSERVATION_LINE = f"{Observation.DESCRIPTOR.full_name}\n".encode()
BATCH_LINE = f"{Batch.DESCRIPTOR.full_name}\n".encode()

_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_MESSAGE_BYTES = 64 * 1024 * 1024


def write_messages(file: BinaryIO, first_line: bytes, messages: Iterable[bytes]) -> int:
    """Writes a recording and returns how many messages went into it.

    Args:
        file: Where to.
        first_line: :data:`OBSERVATION_LINE` or :data:`BATCH_LINE`.
        messages: Serialized messages of that type.
    """
    file.write(first_line)
    count = 0
    for message in messages:
        file.write(_varint(len(message)) + message)
        count += 1
    return count


def plain_bytes(path: Path) -> int:
    """How long a file that is not compressed is; 0 where that is not known, as of a pipe."""
    try:
        if not path.is_file():
            return 0
        with path.open("rb") as file:
            return 0 if file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC else path.stat().st_size
    except OSError:
        return 0


def read_messages(path: Path, skipped: Skipped | None = None) -> Iterator[Message]:
    """The messages in a file, one after the other.

    Args:
        path: The file.
        skipped: Takes those that cannot be read, and the end of a file that is cut off; None: the first is an error.

    Raises:
        RecordingError: The file is no such recording or holds something else, or no message of it can be read; without
            ``skipped`` also one that cannot be read, or a file that is cut off. Names the message.
    """
    num_read = 0
    try:
        with _opened(path) as file:
            line = file.readline(max(len(OBSERVATION_LINE), len(BATCH_LINE)))
            kind: type[Message] | None = {OBSERVATION_LINE: Observation, BATCH_LINE: Batch}.get(line)
            if kind is None:
                if line.startswith(b"evenkeel."):
                    raise RecordingError(f"{path} holds {line.strip()[:80]!r}, which is neither Observation nor Batch")
                file.seek(0)
            for number, at, content in _contents(path, file, skipped):
                if skipped is not None:
                    skipped.place = f"message {number} at byte {at}"
                kind = kind or _kind_of(content)
                for message in _parsed(path, number, kind, content, skipped):
                    num_read += 1
                    yield message
            if num_read == 0:
                none = f"{path} holds no messages" if not skipped or not skipped.count else f"{path}: {skipped.text}"
                raise RecordingError(f"{none}; is it a samples file?")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        if skipped is None or num_read == 0 or not isinstance(error, EOFError):
            raise RecordingError(f"{path} is damaged, or cut off, as a gzip file: {error}") from error
        skipped.add("cut_off", "what is compressed ends before its end is marked")
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error


def _opened(path: Path) -> BinaryIO:
    """The file, decompressed where it is compressed with gzip."""
    file = path.open("rb")
    zipped = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    if not zipped:
        return file
    file.close()
    return cast(BinaryIO, gzip.open(path))


def _contents(path: Path, file: BinaryIO, skipped: Skipped | None) -> Iterator[tuple[int, int, bytes]]:
    """Each message's number, place in the file and bytes."""
    number = 0
    while True:
        number += 1
        at = file.tell()
        size = shift = 0
        while True:
            byte = file.read(1)
            if not byte and shift == 0:
                return
            if not byte and number > 1 and skipped is not None:
                skipped.place = f"message {number} at byte {at}"
                skipped.add("cut_off", "the file ends in the middle of the message's length")
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
            if number == 1:
                raise RecordingError(
                    f"{path}: message 1 at byte {at} claims {size} bytes and the file ends after {len(content)}; is it "
                    "a samples file, and whole?"
                )
            if skipped is None:
                raise RecordingError(
                    f"{path} is cut off in message {number} at byte {at}; drop the end or record it again"
                )
            skipped.place = f"message {number} at byte {at}"
            skipped.add("cut_off", f"the file ends {size - len(content)} bytes before the message does")
            return
        yield number, at, content


def _kind_of(content: bytes) -> type[Message]:
    try:
        message = Observation.FromString(content)
    except DecodeError:
        return Batch
    return Observation if message.frames.iteration or message.HasField("liveness") else Batch


def job_of(message: Message) -> str:
    """The job that a message is of; empty where it names none."""
    return message.job_id if isinstance(message, Observation) else next(iter(message.job_id), "")


def _parsed(path: Path, number: int, kind: type[Message], content: bytes, skipped: Skipped | None) -> Sequence[Message]:
    """The message; nothing where it cannot be read."""
    found: list[Message] = []
    try:
        message = kind.FromString(content)
        found = [message]
        word, problem = ("", "") if job_of(message) else ("no_job", "names no job; is it a samples file?")
    except DecodeError as error:
        word, problem = "malformed", f"is no {kind.DESCRIPTOR.full_name}: {error}"
    if kind is Batch and _kind_of(content) is Observation:
        word, problem = "other_kind", "is an Observation among Batches"
    if not problem:
        return found
    if skipped is None:
        raise RecordingError(f"{path}: message {number} {problem}")
    skipped.add(word, f"it {problem}")
    return ()


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
