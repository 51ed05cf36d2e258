"""Kafka's record batches (magic 2), as a fetch brings them, into one array of places: no object a record.

The library makes some twenty Python objects of each record, which costs more than all that is done with it afterwards.
Format: Kafka's protocol guide, "Record Batch" and "Record".
"""

import struct

import numpy as np
import numpy.typing as npt
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import CorruptRecordException
from aiokafka.record.util import calc_crc32c

from evenkeel.numeric.compiled import compiled

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# Base offset, length behind itself, leader epoch, magic, checksum, attributes, last offset's distance, first and
# largest timestamp, producer (id, epoch, sequence), number of records.
_HEAD = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_LENGTH_AT, _BEHIND_LENGTH, _MAGIC_AT, _SUMMED_FROM = 8, 12, 16, 21
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_DECODERS = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
_LEAST_RECORD_BYTES = 7
_NUM_PLACES = 8


def read_batches(raw: bytes, *, check_sums: bool = True) -> tuple[bytes, Ints, int] | None:
    """All records of a fetch.

    Args:
        raw: Batches one after the other; the last one may be cut off, and is left out then.
        check_sums: Whether to compare checksums.

    Returns:
        A buffer, one row a record as for ``FetchedRecords.places``, and the offset behind the last batch (-1 without
        any). None where there is a batch of another kind: an older format, or of a transaction.

    Raises:
        CorruptRecordException: A checksum or a length is wrong.
    """
    parts: list[bytes] = []
    heads: list[tuple[int, int, int, int, int, int]] = []
    at = num_bytes = num_records = 0
    next_offset = -1
    while (end := _end_of(raw, at)) <= len(raw):
        if len(raw) <= at + _MAGIC_AT or raw[at + _MAGIC_AT] != 2:
            return None
        base, _, _, _, checksum, attributes, last, first_time, largest_time, _, _, _, count = _HEAD.unpack_from(raw, at)
        if attributes & (_TRANSACTIONAL | _CONTROL):
            return None
        if check_sums and calc_crc32c(raw[at + _SUMMED_FROM : end]) != checksum:
            raise CorruptRecordException("a batch's checksum is wrong")
        body = raw[at + _HEAD.size : end]
        if attributes & _CODEC:
            body = bytes(_DECODERS[attributes & _CODEC](body))
        if not 0 <= count <= len(body) // _LEAST_RECORD_BYTES:
            raise CorruptRecordException(f"{count} records in {len(body)} bytes")
        parts.append(body)
        stamped = attributes & _APPEND_TIME
        heads.append((num_bytes, num_bytes + len(body), count, base, largest_time if stamped else first_time, stamped))
        num_bytes, num_records, next_offset = num_bytes + len(body), num_records + count, base + last + 1
        at = end
    buffer = b"".join(parts)
    places = np.empty((num_records, _NUM_PLACES), dtype=np.int64)
    if num_records and not _find(np.frombuffer(buffer, dtype=np.uint8), np.array(heads, dtype=np.int64), places):
        raise CorruptRecordException("a record's lengths are wrong")
    return buffer, places, next_offset


def _end_of(raw: bytes, at: int) -> int:
    """Behind the batch that begins at ``at``; beyond the buffer where it is not whole."""
    if at + _BEHIND_LENGTH > len(raw):
        return len(raw) + 1
    length: int = _LENGTH.unpack_from(raw, at + _LENGTH_AT)[0]
    if length < _HEAD.size - _BEHIND_LENGTH:
        raise CorruptRecordException(f"a batch of {length} bytes")
    return at + _BEHIND_LENGTH + length


@compiled
def read_varint(wire: Bytes, at: int, stop: int) -> tuple[int, int]:
    """A zigzag integer and the place behind it; (0, ``stop`` + 1) where it does not end before ``stop``."""
    value, shift = 0, 0
    while at < stop and shift < 64:
        byte = int(wire[at])
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return 0, stop + 1


@compiled
def _find(wire: Bytes, heads: Ints, places: Ints) -> bool:
    """Fills ``places``, eight columns; False if a length is wrong.

    Args:
        wire: All batches' records.
        heads: One row a batch: where its records begin and end, how many they are, its offset, and its time in
            milliseconds with whether that is the broker's.
        places: To be filled.
    """
    row = 0
    for batch in range(len(heads)):
        at, end = heads[batch, 0], heads[batch, 1]
        for _ in range(heads[batch, 2]):
            size, at = read_varint(wire, at, end)
            stop = at + size
            if size < 0 or stop > end:
                return False
            at += 1  # attributes, of which there are none
            later, at = read_varint(wire, at, stop)
            distance, at = read_varint(wire, at, stop)
            places[row, 0] = heads[batch, 3] + distance
            places[row, 1] = heads[batch, 4] if heads[batch, 5] else heads[batch, 4] + later
            for column in (2, 4):  # key, value
                length, at = read_varint(wire, at, stop)
                places[row, column] = at if length >= 0 else -1
                at += max(length, 0)
                if at > stop:
                    return False
                places[row, column + 1] = at
            places[row, 6], places[row, 7] = at, stop
            num_headers, at = read_varint(wire, at, stop)
            if num_headers < 0 or num_headers > stop:
                return False
            for side in range(2 * num_headers):  # name, value, name, value, ...
                length, at = read_varint(wire, at, stop)
                if length < 0 and side % 2 == 0:
                    return False
                at += max(length, 0)
                if at > stop:
                    return False
            if at != stop:
                return False
            row += 1
        if at != end:
            return False
    return True
