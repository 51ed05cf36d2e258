"""Reads what a topic holds of one job: from its beginning to what it holds now."""

import asyncio
from collections.abc import AsyncIterator

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from contracts.topics import Topic
from offline.errors import RecordingError

_TIMEOUT_SECONDS = 30.0
_POLL_MS = 1000


async def values_of_job(bootstrap_servers: str, topic: Topic, job_id: str) -> AsyncIterator[bytes]:
    """The values of a job's records, in order; ends at the offsets that were the newest when it began.

    Joins no group and commits nothing, so it disturbs no service.

    Raises:
        RecordingError: Kafka cannot be reached, or the topic is not there.
    """
    consumer = AIOKafkaConsumer(
        topic.name,
        group_id=None,
        bootstrap_servers=bootstrap_servers.split(","),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=topic.max_message_bytes,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await consumer.start()
            partitions: list[TopicPartition] = sorted(consumer.assignment())
            if not partitions:
                raise RecordingError(f"topic {topic.name} is not there; evenkeel topics apply creates it")
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
