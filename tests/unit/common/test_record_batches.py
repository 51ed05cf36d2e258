"""What a fetch brought is read as the library reads it, record by record."""

from collections.abc import Sequence

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.common.kafka import ConsumedRecord, FetchedRecords, Partition
from evenkeel.services.common.kafka.client import consumed_record
from evenkeel.services.common.kafka.record_batches import read_batches

WHERE = Partition("topic", 3)
HEAD_BYTES = 61
NO_CODEC, GZIP, TRANSACTIONAL, CONTROL = 0, 1, 0x10, 0x20

blobs = st.one_of(st.none(), st.binary(max_size=200))
headers = st.lists(st.tuples(st.sampled_from(["", "content-type", "größe"]), st.binary(max_size=70)), max_size=3)
contents = st.lists(st.tuples(st.integers(0, 2**40), blobs, blobs, headers), min_size=1, max_size=8)


def batch_of(
    contents: Sequence[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]],
    *,
    base: int = 0,
    codec: int = NO_CODEC,
    transactional: bool = False,
) -> bytes:
    """One batch as a producer's library makes it and the broker numbers it."""
    builder = DefaultRecordBatchBuilder(2, codec, transactional, 7 if transactional else -1, -1, -1, 1 << 24)
    for place, (time, key, value, told) in enumerate(contents):
        builder.append(place, time, key, value, told)
    return base.to_bytes(8, "big") + bytes(builder.build())[8:]


def by_the_library(raw: bytes) -> list[ConsumedRecord]:
    found, records = [], MemoryRecords(raw)
    while records.has_next():
        batch = records.next_batch()
        assert batch is not None
        assert batch.validate_crc()
        found.extend(consumed_record(WHERE, each) for each in batch)
    return found


def by_us(raw: bytes) -> FetchedRecords:
    found = read_batches(raw)
    assert found is not None
    return FetchedRecords(WHERE, *found[:2])


@settings(deadline=None)
@given(st.lists(st.tuples(contents, st.sampled_from([NO_CODEC, GZIP])), min_size=1, max_size=4), st.integers(0, 400))
def test_records_are_those_of_the_library(batches: list[tuple[list[tuple], int]], cut: int) -> None:  # type: ignore[type-arg]
    base, parts = 1000, []
    for told, codec in batches:
        parts.append(batch_of(told, base=base, codec=codec))
        base += len(told) + 2  # gaps: a broker compacts
    raw = b"".join(parts)
    expected = by_the_library(raw)
    found = by_us(raw)
    assert [*found] == expected
    assert [found[place] for place in range(len(found))] == expected
    assert [*found[1:3]] == expected[1:3]
    assert read_batches(raw)[2] == base - 2  # type: ignore[index]
    # The broker cuts a fetch off wherever it is full.
    cut = max(len(parts[0]), len(raw) - cut)
    assert [*by_us(raw[:cut])] == by_the_library(raw[:cut])


@settings(deadline=None, max_examples=300)
@given(contents, st.data())
def test_spoiled_records_are_read_within_their_bounds_or_refused(told: list[tuple], data: st.DataObject) -> None:  # type: ignore[type-arg]
    raw = bytearray(batch_of(told))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(HEAD_BYTES, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with pytest.raises(CorruptRecordException):
        by_us(bytes(raw[:-1]) + bytes([raw[-1] ^ 1]))  # its checksum tells
    try:
        found = read_batches(bytes(raw), check_sums=False)
    except CorruptRecordException:
        return
    assert found is not None
    buffer, places, _ = found
    for record, row in zip(FetchedRecords(WHERE, buffer, places), places.tolist(), strict=True):
        assert all(-1 <= place <= len(buffer) for place in row[2:])
        assert len(record.value or b"") <= len(buffer)


def test_what_is_of_a_transaction_is_left_to_the_library() -> None:
    told = [(0, b"key", b"value", [])]
    assert read_batches(batch_of(told) + batch_of(told, base=1, transactional=True)) is None


def test_a_fetch_that_holds_no_whole_batch_holds_no_record() -> None:
    raw = batch_of([(0, b"key", b"value", [])])
    for size in (0, 5, 12, 60, len(raw) - 1):
        _, places, next_offset = read_batches(raw[:size]) or (b"", [], 0)
        assert (len(places), next_offset) == (0, -1)


def test_records_made_here_are_those_that_were_given() -> None:
    records = [
        ConsumedRecord(WHERE, 5, 1.5, b"key", b"value", [("name", b"content")]),
        ConsumedRecord(WHERE, 9, 2.25, None, None, []),
    ]
    assert [*FetchedRecords.of(WHERE, records)] == records
