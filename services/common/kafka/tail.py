"""Reads the end of a partition backwards, outside any group: how a service finds out what it has said already."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from services.common.backoff import Reachability, persist
from services.common.kafka.client import KAFKA_AWAY, KafkaClientConfig, KafkaError, consumed_record
from services.common.kafka.records import ConsumedRecord, Partition

_TIMEOUT_SECONDS = 15.0


class Tail(Protocol):
    """The end of partitions."""

    async def read_back(
        self, partition: Partition, *, enough: Callable[[ConsumedRecord], bool], least: int = 256, most: int = 20_000
    ) -> list[ConsumedRecord]:
        """The newest records of a partition, oldest first; waits for as long as the broker is away.

        Args:
            partition: Which.
            enough: Whether to go back no further than this record; it is part of the answer.
            least: Look at so many at once, at least.
            most: Go back no further than so many offsets.
        """
        ...


class KafkaTail:
    """:class:`Tail` on aiokafka; connects for each call."""

    def __init__(self, config: KafkaClientConfig) -> None:
        """Keeps what it is given; does no I/O."""
        self._config = config
        self._reachability = Reachability("kafka (tail)")

    async def read_back(
        self, partition: Partition, *, enough: Callable[[ConsumedRecord], bool], least: int = 256, most: int = 20_000
    ) -> list[ConsumedRecord]:
        """See :class:`Tail`."""

        async def read() -> list[ConsumedRecord]:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                client = AIOKafkaConsumer(**self._config.reader_arguments())
                try:
                    await client.start()
                    return await _read_back(client, partition, enough, least, most)
                finally:
                    with contextlib.suppress(*KAFKA_AWAY, KafkaError):
                        await client.stop()

        return await persist(read, transient=KAFKA_AWAY, reachability=self._reachability)


async def _read_back(
    client: AIOKafkaConsumer, partition: Partition, enough: Callable[[ConsumedRecord], bool], least: int, most: int
) -> list[ConsumedRecord]:
    topic_partition = TopicPartition(*partition)
    client.assign([topic_partition])
    first = (await client.beginning_offsets([topic_partition]))[topic_partition]
    end = (await client.end_offsets([topic_partition]))[topic_partition]
    wanted = least
    while True:
        start = max(first, end - wanted)
        records = await _read_range(client, topic_partition, start, end)
        if start == first or wanted >= most or (records and enough(records[0])):
            for index in range(len(records) - 1, -1, -1):
                if enough(records[index]) and len(records) - index >= least:
                    return records[index:]
            return records
        wanted = min(wanted * 4, most)


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
