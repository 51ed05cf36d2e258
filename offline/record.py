"""Reads what a topic holds of one job: all of it, or the newest."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from contracts.topics import Topic
from offline.errors import RecordingError

_TIMEOUT_SECONDS = 30.0
_POLL_MS = 1000
_WINDOW_PER_VALUE = 8
_WIDER = 8


async def values_of_job(bootstrap_servers: str, topic: Topic, job_id: str) -> AsyncIterator[bytes]:
    """The values of a job's records, in order; ends at the offsets that were the newest when it began.

    Joins no group and commits nothing, so it disturbs no service.

    Raises:
        RecordingError: Kafka cannot be reached, or the topic is not there.
    """
    consumer = _consumer(bootstrap_servers, topic)
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            partitions = await _started(consumer, topic)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
        key = job_id.encode()
        while True:
            waiting = [one for one in partitions if await consumer.position(one) < ends[one]]
            if not waiting:
                return
            for partition, records in (await consumer.getmany(*waiting, timeout_ms=_POLL_MS)).items():
                for record in records:
                    if record.key == key and record.value and record.offset < ends[partition]:
                        yield record.value
    except (KafkaError, OSError, TimeoutError) as error:
        raise RecordingError(f"Kafka at {bootstrap_servers} cannot be read: {error or 'no answer in time'}") from error
    finally:
        await consumer.stop()


async def newest_values_of_job(
    bootstrap_servers: str, topic: Topic, job_id: str, *, count: int, wanted: Callable[[bytes], bool]
) -> list[bytes]:
    """The newest values of a job, oldest first; fewer where the topic holds fewer.

    Reads the ends of the partitions, and further back until there are enough.

    Args:
        bootstrap_servers: Where Kafka is.
        topic: Topic whose key is the job's id.
        job_id: Job.
        count: How many.
        wanted: Which values count.

    Raises:
        RecordingError: Kafka cannot be reached, or the topic is not there.
    """
    consumer = _consumer(bootstrap_servers, topic)
    key = job_id.encode()
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            partitions = await _started(consumer, topic)
            begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
            window = _WINDOW_PER_VALUE * count
            while True:
                starts = {one: max(begins[one], ends[one] - window) for one in partitions}
                found = await _values_between(consumer, starts, ends, key)
                kept = [value for value in found if wanted(value)]
                if len(kept) >= count or all(starts[one] == begins[one] for one in partitions):
                    return kept[-count:]
                window *= _WIDER
    except (KafkaError, OSError, TimeoutError) as error:
        raise RecordingError(f"Kafka at {bootstrap_servers} cannot be read: {error or 'no answer in time'}") from error
    finally:
        await consumer.stop()


async def _values_between(
    consumer: AIOKafkaConsumer,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    key: bytes,
) -> list[bytes]:
    """Values of one key; a key's values lie in one partition, so they come in order."""
    for partition, start in starts.items():
        consumer.seek(partition, start)
    found: list[bytes] = []
    while True:
        waiting = [one for one in starts if await consumer.position(one) < ends[one]]
        if not waiting:
            return found
        for partition, records in (await consumer.getmany(*waiting, timeout_ms=_POLL_MS)).items():
            found += [
                record.value
                for record in records
                if record.key == key and record.value and record.offset < ends[partition]
            ]


def _consumer(bootstrap_servers: str, topic: Topic) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic.name,
        group_id=None,
        bootstrap_servers=bootstrap_servers.split(","),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=topic.max_message_bytes,
    )


async def _started(consumer: AIOKafkaConsumer, topic: Topic) -> list[TopicPartition]:
    """Starts a consumer and returns the topic's partitions.

    Raises:
        RecordingError: The topic is not there.
    """
    await consumer.start()
    partitions: list[TopicPartition] = sorted(consumer.assignment())
    if not partitions:
        raise RecordingError(f"topic {topic.name} is not there; evenkeel topics apply creates it")
    return partitions
