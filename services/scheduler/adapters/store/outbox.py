"""Sends what transactions left in the outbox to Kafka, in order, at least once."""

import asyncio
import contextlib
from collections.abc import Sequence

from evenkeel.contracts.topics import TOPICS, record_headers
from evenkeel.history import writes
from evenkeel.history.stream_records import OutboxRecord
from evenkeel.services.common.kafka.ports import Producer
from evenkeel.services.common.kafka.records import OutgoingRecord
from evenkeel.services.scheduler.adapters.store.store import Store

_SOURCE = "evenkeel/scheduler"
_BATCH_SIZE = 100
# What a process left behind that died between its commit and its own publishing waits at most this long.
_POLL_SECONDS = 1.0
# While Kafka is away the transaction is given up now and then: an idle one keeps the database from tidying up.
_SEND_SECONDS = 10.0
_TOPICS_BY_NAME = {topic.name: topic for topic in TOPICS}


class _KafkaAwayError(Exception):
    """Kafka did not acknowledge in time; the producer has said so in the log."""


class OutboxPublisher:
    """Takes records out of the outbox, sends them, and only then lets them go. Belongs to one event loop.

    Args:
        store: The history.
        producer: Started; the caller stops it.
    """

    def __init__(self, store: Store, producer: Producer) -> None:
        self._store = store
        self._producer = producer

    async def run(self) -> None:
        """Publishes until cancelled; waits while the database or Kafka is away."""
        filled = self._store.outbox_filled
        while True:
            filled.clear()
            with contextlib.suppress(_KafkaAwayError):
                while await self._store.patiently(self.publish_once):
                    pass
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(filled.wait(), _POLL_SECONDS)

    async def publish_once(self) -> int:
        """Send the oldest records.

        Returns:
            How many there were.

        Raises:
            OperationalError, InterfaceError, DatabaseAwayError: The database is away; the records stay.
        """
        async with self._store.begin(idle_seconds=_SEND_SECONDS) as connection:
            waiting = await writes.take_outbox(connection, limit=_BATCH_SIZE)
            if waiting:
                await self._send(waiting)
        return len(waiting)

    async def _send(self, waiting: Sequence[OutboxRecord]) -> None:
        records = [
            OutgoingRecord(
                topic=record.topic,
                key=record.key.encode(),
                value=record.value,
                headers=tuple(record_headers(_TOPICS_BY_NAME[record.topic], _SOURCE, event_id=record.event_id)),
            )
            for record in waiting
        ]
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._producer.send_all(records)
        except TimeoutError as error:
            raise _KafkaAwayError from error
