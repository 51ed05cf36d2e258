"""Listens to the public topics like any outside user: no consumer group, nothing committed, from now on.

Runs as one task on the demo's event loop; the run log is touched by that loop only.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from google.protobuf.message import DecodeError

from evenkeel.contracts.topics import BATCHES, PLANS, PROFILES, VERDICTS
from evenkeel.demo.observed.decode import add_message
from evenkeel.demo.observed.run_log import RunLog

TOPICS = (BATCHES, VERDICTS, PROFILES, PLANS)
POLL_MILLISECONDS = 100


@asynccontextmanager
async def recording(
    bootstrap_servers: str, log: RunLog, *, clock: Callable[[], float] = time.time
) -> AsyncIterator[None]:
    """While inside, everything published about the log's job is added to it.

    What was published before the block was entered is not seen.

    Raises:
        aiokafka.errors.KafkaError: Kafka does not answer.
    """
    consumer = AIOKafkaConsumer(
        *(topic.name for topic in TOPICS),
        bootstrap_servers=bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="latest",
        fetch_max_wait_ms=POLL_MILLISECONDS,
    )
    await consumer.start()
    try:
        partitions = consumer.assignment()
        # Positions are fixed before the first poll, else records sent in between would be passed over.
        await consumer.seek_to_end(*partitions)
        for partition in partitions:
            await consumer.position(partition)
        listener = asyncio.create_task(_listen(consumer, log, clock), name="recorder")
        try:
            yield
        finally:
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener
    finally:
        await consumer.stop()


async def _listen(consumer: AIOKafkaConsumer, log: RunLog, clock: Callable[[], float]) -> None:
    while True:
        batches: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(timeout_ms=POLL_MILLISECONDS)
        received_at = clock()
        for partition, records in batches.items():
            for record in records:
                try:
                    add_message(log, partition.topic, record.value or b"", received_at)
                except (DecodeError, ValueError):
                    log.num_unreadable += 1
