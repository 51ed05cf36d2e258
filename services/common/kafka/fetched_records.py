"""Records as a fetch brought them: a buffer, and where in it everything lies. An object a record only for who asks."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from evenkeel.services.common.kafka.record_batches import read_batches, read_varint
from evenkeel.services.common.kafka.records import ConsumedRecord, Partition

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

OFFSET, TIMESTAMP, KEY, VALUE, HEADERS = 0, 1, 2, 4, 6
"""Columns of ``FetchedRecords.places``. Of key, value and headers the first is their begin, the next one their end."""


class FetchedRecords(Sequence[ConsumedRecord]):
    """Consecutive records of one partition.

    Attributes:
        partition: Where they come from.
        buffer: Bytes in which they lie, perhaps beside others.
        places: One row a record: offset, timestamp in milliseconds, and begin and end in the buffer of key, value and
            headers, begin -1 where key or value is null.
    """

    def __init__(self, partition: Partition, buffer: bytes, places: Ints) -> None:
        self.partition = partition
        self.buffer = buffer
        self.places = places

    @classmethod
    def of(cls, partition: Partition, records: Sequence[ConsumedRecord]) -> "FetchedRecords":
        """The same as a fetch would have brought these records."""
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for record in records:
            builder.append(
                record.offset, round(record.timestamp_seconds * 1000), record.key, record.value, [*record.headers]
            )
        found = read_batches(bytes(builder.build()), check_sums=False)
        assert found is not None, "it was made here"
        return cls(partition, *found[:2])

    @property
    def wire(self) -> Bytes:
        """The buffer as numbers."""
        return np.frombuffer(self.buffer, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, which: int) -> ConsumedRecord: ...

    @overload
    def __getitem__(self, which: slice) -> "FetchedRecords": ...

    def __getitem__(self, which: int | slice) -> "ConsumedRecord | FetchedRecords":
        if isinstance(which, slice):
            return FetchedRecords(self.partition, self.buffer, self.places[which])
        return self._record(self.places[which].tolist())

    def __iter__(self) -> Iterator[ConsumedRecord]:
        return map(self._record, self.places.tolist())

    def _record(self, places: Sequence[int]) -> ConsumedRecord:
        offset, timestamp, key, key_end, value, value_end, headers, _ = places
        return ConsumedRecord(
            self.partition,
            offset,
            timestamp / 1000,
            None if key < 0 else self.buffer[key:key_end],
            None if value < 0 else self.buffer[value:value_end],
            self._headers(headers),
        )

    def _headers(self, at: int) -> list[tuple[str, bytes]]:
        found = []
        count, at = read_varint(self.wire, at, len(self.buffer))
        for _ in range(count):
            size, at = read_varint(self.wire, at, len(self.buffer))
            name = self.buffer[at : at + size].decode(errors="replace")
            size, at = read_varint(self.wire, at + size, len(self.buffer))
            end = at + max(size, 0)  # a null is no bytes to us: none of our headers can be one
            found.append((name, self.buffer[at:end]))
            at = end
        return found
