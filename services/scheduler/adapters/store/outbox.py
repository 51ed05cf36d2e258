"""Sends what transactions left in the outbox to Kafka, in order, at least once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.contracts.headers import record_headers
from evenkeel.contracts.topics import TOPICS
from evenkeel.history import writes
from evenkeel.history.stream_records import OutboxRecord
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.kafka.ports import Producer
from evenkeel.services.common.kafka.records import OutgoingRecord
from evenkeel.services.common.postgres.database import DATABASE_AWAY

_SOURCE = "evenkeel/scheduler"
_BATCH_SIZE = 100
# What a process left behind that died between its commit and its own publishing waits at most this long.
_POLL_SECONDS = 1.0
# While Kafka is away the transaction is given up now and then: an idle one keeps the database from tidying up.
_SEND_SECONDS = 10.0
_DATABASE_SECONDS = 5.0
_TOPICS_BY_NAME = {topic.name: topic for topic in TOPICS}


class _KafkaAwayError(Exception):
    """Kafka did not acknowledge in time; the producer has said so in the log."""


class OutboxPublisher:
    """Takes records out of the outbox, sends them, and only then lets them go. Belongs to one event loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        producer: Producer,
        filled: asyncio.Event,
        *,
        reachability: Reachability | None = None,
        fence: Callable[[AsyncConnection], Awaitable[None]] | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            engine: Of the history.
            producer: Started; the caller stops it.
            filled: Set by whoever fills the outbox, so that nothing waits for the next look.
            reachability: Told whether the database answers; None = only the log is.
            fence: Of every transaction; raises when this process is not in charge any more.
        """
        self._fence = fence
        self._engine = engine
        self._producer = producer
        self._filled = filled
        self._reachability = reachability or Reachability("postgres")

    async def run(self) -> None:
        """Publishes until cancelled; waits while the database or Kafka is away."""
        while True:
            self._filled.clear()
            while await persist(self._publish_or_give_up, transient=DATABASE_AWAY, reachability=self._reachability):
                pass
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._filled.wait()
            except TimeoutError:
                continue

    async def _publish_or_give_up(self) -> int:
        try:
            return await self.publish_once()
        except _KafkaAwayError:
            return 0

    async def publish_once(self) -> int:
        """Send the oldest records.

        Returns:
            How many there were.

        Raises:
            OperationalError, InterfaceError, OSError, TimeoutError: The database is away; the records stay.
        """
        clock = asyncio.get_running_loop().time
        async with asyncio.timeout(_DATABASE_SECONDS) as limit, self._engine.begin() as connection:
            if self._fence is not None:
                await self._fence(connection)
            waiting = await writes.take_outbox(connection, limit=_BATCH_SIZE)
            if waiting:
                limit.reschedule(None)
                await self._send(waiting)
                limit.reschedule(clock() + _DATABASE_SECONDS)
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
