"""Reads the end of a partition backwards, outside any group: how a service finds out what it has said already."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.kafka.client import KAFKA_AWAY, KafkaClientConfig, KafkaError, consumed_record
from evenkeel.services.common.kafka.records import ConsumedRecord, Partition

_TIMEOUT_SECONDS = 15.0
# Looked at together at least, and how far back at most.
_LEAST_RECORDS, _MOST_RECORDS = 256, 20_000


class Tail(Protocol):
    """The end of partitions."""

    async def read_back(
        self, partitions: Collection[Partition], *, enough: Callable[[ConsumedRecord], bool]
    ) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        """The newest records of partitions that have any, oldest first; waits for as long as the broker is away.

        Args:
            partitions: Which.
            enough: Whether to go back no further than this record; it is part of the answer.
        """
        ...


class KafkaTail:
    """:class:`Tail` on aiokafka; connects when first used and keeps the connection."""

    def __init__(self, config: KafkaClientConfig) -> None:
        """Keeps what it is given; does no I/O."""
        self._config = config
        self._reachability = Reachability("kafka (tail)")
        self._client: AIOKafkaConsumer | None = None
        self._lock = asyncio.Lock()

    async def read_back(
        self, partitions: Collection[Partition], *, enough: Callable[[ConsumedRecord], bool]
    ) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        """See :class:`Tail`."""
        found: dict[Partition, list[ConsumedRecord]] = {}

        async def read() -> dict[Partition, list[ConsumedRecord]]:
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    ranges = await _ranges(await self._connected(), partitions)
                for each, (first, end) in ranges.items():
                    if each not in found:
                        async with asyncio.timeout(_TIMEOUT_SECONDS):
                            found[each] = await _read_back(await self._connected(), each, first, end, enough)
                return found
            except BaseException:
                await self._disconnect()
                raise

        async with self._lock:
            return await persist(read, transient=KAFKA_AWAY, reachability=self._reachability)

    async def stop(self) -> None:
        """Closes the connection; a later call opens it again."""
        async with self._lock:
            await self._disconnect()

    async def _connected(self) -> AIOKafkaConsumer:
        if self._client is None:
            self._client = AIOKafkaConsumer(**self._config.reader_arguments())
            await self._client.start()
        return self._client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(*KAFKA_AWAY, KafkaError):
                await client.stop()


async def _ranges(client: AIOKafkaConsumer, partitions: Collection[Partition]) -> dict[Partition, tuple[int, int]]:
    """First offset, and the one behind the last, of partitions that have records."""
    asked = [TopicPartition(*each) for each in partitions]
    if not asked:
        return {}
    firsts, ends = await client.beginning_offsets(asked), await client.end_offsets(asked)
    return {Partition(*each): (firsts[each], ends[each]) for each in asked if ends[each] > firsts[each]}


async def _read_back(
    client: AIOKafkaConsumer, partition: Partition, first: int, end: int, enough: Callable[[ConsumedRecord], bool]
) -> list[ConsumedRecord]:
    topic_partition = TopicPartition(*partition)
    client.assign([topic_partition])
    wanted = _LEAST_RECORDS
    while True:
        start = max(first, end - wanted)
        records = await _read_range(client, topic_partition, start, end)
        if start == first or wanted >= _MOST_RECORDS or (records and enough(records[0])):
            for index in range(len(records) - 1, -1, -1):
                if enough(records[index]) and len(records) - index >= _LEAST_RECORDS:
                    return records[index:]
            return records
        wanted = min(wanted * 4, _MOST_RECORDS)


async def _read_range(
    client: AIOKafkaConsumer, topic_partition: TopicPartition, start: int, end: int
) -> list[ConsumedRecord]:
    partition = Partition(topic_partition.topic, topic_partition.partition)
    records: list[ConsumedRecord] = []
    client.seek(topic_partition, start)
    while await client.position(topic_partition) < end:
        for fetched in (await client.getmany(topic_partition, timeout_ms=200)).values():
            records.extend(consumed_record(partition, each) for each in fetched if each.offset < end)
    return records
