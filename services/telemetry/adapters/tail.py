"""Reads the end of a partition backwards, outside any group: how a service finds out what it has said already."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.kafka.client import KAFKA_AWAY, KafkaClientConfig, KafkaError, consumed_record
from evenkeel.services.common.kafka.records import ConsumedRecord, Partition

_TIMEOUT_SECONDS = 15.0
# Looked at together at least, and how far back at most.
_LEAST_RECORDS, _MOST_RECORDS = 256, 20_000


class Tail:
    """The end of partitions, read with aiokafka over a connection of its own each time: that is seldom."""

    def __init__(self, config: KafkaClientConfig) -> None:
        """Keeps what it is given; does no I/O."""
        self._config = config
        self._reachability = Reachability("kafka (tail)")

    async def read_back(
        self, partitions: Collection[Partition], *, enough: Callable[[ConsumedRecord], bool]
    ) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        """The newest records of partitions that have any, oldest first; waits for as long as the broker is away.

        Args:
            partitions: Which.
            enough: Whether to go back no further than this record; it is part of the answer.
        """
        asked = [TopicPartition(*each) for each in partitions]

        async def read() -> dict[Partition, list[ConsumedRecord]]:
            client = AIOKafkaConsumer(**self._config.reader_arguments())
            try:
                await client.start()
                return await _read_back(client, asked, enough)
            finally:
                with contextlib.suppress(*KAFKA_AWAY, KafkaError):
                    await client.stop()

        return await persist(read, transient=KAFKA_AWAY, reachability=self._reachability)


async def _read_back(
    client: AIOKafkaConsumer, asked: Sequence[TopicPartition], enough: Callable[[ConsumedRecord], bool]
) -> dict[Partition, list[ConsumedRecord]]:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        firsts = await client.beginning_offsets(asked) if asked else {}
        ends = await client.end_offsets(asked) if asked else {}
    found, wanted = {}, _LEAST_RECORDS
    left = [each for each in asked if ends[each] > firsts[each]]
    while left:
        starts = {each: max(firsts[each], ends[each] - wanted) for each in left}
        for each, records in (await _read(client, starts, ends)).items():
            if starts[each] == firsts[each] or wanted >= _MOST_RECORDS or (records and enough(records[0])):
                found[Partition(*each)] = _newest(records, enough)
        left = [each for each in left if Partition(*each) not in found]
        wanted = min(wanted * 4, _MOST_RECORDS)
    return found


def _newest(records: list[ConsumedRecord], enough: Callable[[ConsumedRecord], bool]) -> list[ConsumedRecord]:
    """From the last one on that is enough, if there are some behind it."""
    for index in range(len(records) - 1, -1, -1):
        if enough(records[index]) and len(records) - index >= _LEAST_RECORDS:
            return records[index:]
    return records


async def _read(
    client: AIOKafkaConsumer, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, list[ConsumedRecord]]:
    """All partitions side by side, for as long as something comes."""
    client.assign(list(starts))
    for each, start in starts.items():
        client.seek(each, start)
    records: dict[TopicPartition, list[ConsumedRecord]] = {each: [] for each in starts}
    heard_seconds = time.monotonic()
    while [each for each in starts if await client.position(each) < ends[each]]:
        fetched = await client.getmany(timeout_ms=200)
        if fetched:
            heard_seconds = time.monotonic()
        elif time.monotonic() - heard_seconds > _TIMEOUT_SECONDS:
            raise TimeoutError("the end of what was said does not come")
        for each, raw in fetched.items():
            records[each] += [consumed_record(Partition(*each), one) for one in raw if one.offset < ends[each]]
    return records
