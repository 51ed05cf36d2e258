"""Reads what a topic holds of one job: all of it, or the newest."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from evenkeel.contracts.topics import Topic
from evenkeel.offline.errors import KafkaAwayError, RecordingError

_TIMEOUT_SECONDS = 30.0
_POLL_MS = 1000
_WINDOW_PER_VALUE = 8
_WIDER = 8


async def values_of_job(
    bootstrap_servers: str, topic: Topic, job_id: str, security: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    """The values of a job's records, in order; ends at the offsets that were the newest when it began.

    Joins no group and commits nothing, so it disturbs no service.

    Raises:
        KafkaAwayError: Kafka does not answer, or stops to.
        RecordingError: The topic is not there.
    """
    consumer = _consumer(bootstrap_servers, topic, security)
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            partitions = await _started(consumer, topic)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
        key = job_id.encode()
        while True:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                fetched = await _more(consumer, ends)
            if not fetched:
                return
            for partition, records in fetched.items():
                for record in records:
                    if record.key == key and record.value and record.offset < ends[partition]:
                        yield record.value
    except (KafkaError, OSError, TimeoutError) as error:
        raise _away(bootstrap_servers, error) from error
    finally:
        await consumer.stop()


async def newest_values_of_job(
    bootstrap_servers: str,
    topic: Topic,
    job_id: str,
    security: Mapping[str, Any],
    *,
    count: int,
    wanted: Callable[[bytes], bool],
) -> list[bytes]:
    """The newest values of a job, oldest first; fewer where the topic holds fewer.

    Reads the ends of the partitions, and further back until there are enough.

    Args:
        bootstrap_servers: Where Kafka is.
        topic: Topic whose key is the job's id.
        job_id: Job.
        security: How it is spoken to, see :mod:`evenkeel.contracts.kafka_security`.
        count: How many.
        wanted: Which values count.

    Raises:
        KafkaAwayError: Kafka does not answer, or stops to.
        RecordingError: The topic is not there.
    """
    consumer = _consumer(bootstrap_servers, topic, security)
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
        raise _away(bootstrap_servers, error) from error
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
    while fetched := await _more(consumer, ends):
        for partition, records in fetched.items():
            found += [
                record.value
                for record in records
                if record.key == key and record.value and record.offset < ends[partition]
            ]
    return found


async def _more(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
    """What comes next before ``ends``; empty once they are reached, so a Kafka that stops to answer holds it up."""
    while waiting := [one for one, end in ends.items() if await consumer.position(one) < end]:
        fetched: Mapping[TopicPartition, Sequence[ConsumerRecord]] = await consumer.getmany(
            *waiting, timeout_ms=_POLL_MS
        )
        if fetched:
            return fetched
    return {}


def _away(bootstrap_servers: str, error: Exception) -> KafkaAwayError:
    return KafkaAwayError(f"Kafka at {bootstrap_servers} cannot be read: {str(error) or 'no answer in time'}")


def _consumer(bootstrap_servers: str, topic: Topic, security: Mapping[str, Any]) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic.name,
        group_id=None,
        bootstrap_servers=bootstrap_servers.split(","),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=topic.max_message_bytes,
        **security,
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
