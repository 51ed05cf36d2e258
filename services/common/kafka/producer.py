"""The producer port on aiokafka: idempotent within its life, replaced by a fresh one after an error.

An idempotent producer that lost a batch can stay stuck on its sequence numbers, so any failed send ends it; what was
not acknowledged goes out again, in order, on the next one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaProducer

from evenkeel.services.common.backoff import Backoff, Reachability, persist
from evenkeel.services.common.kafka.client import KAFKA_AWAY, KAFKA_REFUSES, KafkaClientConfig, KafkaError
from evenkeel.services.common.kafka.records import OutgoingRecord
from evenkeel.services.common.metrics import KafkaMetrics

_STOP_TIMEOUT_SECONDS = 3.0


class KafkaProducer:
    """Writes records at least once; see :class:`~evenkeel.services.common.kafka.ports.Producer`.

    Concurrent calls are allowed; their records keep their order per key within each call.
    """

    def __init__(
        self,
        config: KafkaClientConfig,
        metrics: KafkaMetrics,
        *,
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            config: Where Kafka is.
            metrics: Counts what is sent.
            on_change: Told (reachable, problem) when Kafka goes away or comes back.
        """
        self._config = config
        self._metrics = metrics
        self._reachability = Reachability("kafka (producer)", on_change)
        self._client: AIOKafkaProducer | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Returns when connected; waits for as long as Kafka is away."""
        await persist(self._connected, transient=KAFKA_AWAY, reachability=self._reachability)

    async def send_all(self, records: Sequence[OutgoingRecord]) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Producer`.

        Raises:
            KafkaError: One of :data:`~evenkeel.services.common.kafka.client.KAFKA_REFUSES`: trying again would not
            help.
        """
        try:
            await self._send_patiently(list(records))
        except asyncio.CancelledError:
            self._reachability.forget()
            raise

    async def _send_patiently(self, remaining: Sequence[OutgoingRecord]) -> None:
        backoff = Backoff()
        while remaining:
            client: AIOKafkaProducer | None = None
            try:
                client = await self._connected()
                num_sent, error = await self._send(client, remaining)
            except KAFKA_AWAY as away:
                num_sent, error = 0, away
            remaining = remaining[num_sent:]
            if error is None:
                self._reachability.up()
            else:
                self._reachability.down(error)
                self._metrics.produce_retries.inc()
                await self._discard(client)
                await asyncio.sleep(backoff.next_seconds())

    async def stop(self) -> None:
        """Closes the connections; everything acknowledged is already there."""
        await self._discard(self._client)

    async def _send(
        self, client: AIOKafkaProducer, records: Sequence[OutgoingRecord]
    ) -> tuple[int, BaseException | None]:
        """How many of the first records were acknowledged, and what happened to the next one."""
        futures = []
        error: BaseException | None = None
        for record in records:
            try:
                futures.append(
                    await client.send(record.topic, record.value, key=record.key, headers=list(record.headers))
                )
            except KAFKA_REFUSES:
                raise
            except KafkaError as problem:
                error = problem
                break
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        num_sent = 0
        for record, outcome in zip(records, outcomes, strict=False):
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, (KafkaError, *KAFKA_AWAY)):
                    raise outcome
                if isinstance(outcome, KAFKA_REFUSES):
                    raise outcome
                return num_sent, outcome
            self._metrics.produced.labels(record.topic).inc()
            num_sent += 1
        return num_sent, error

    async def _connected(self) -> AIOKafkaProducer:
        async with self._lock:
            if self._client is None:
                client = AIOKafkaProducer(**self._config.producer_arguments())
                try:
                    await client.start()
                except BaseException:
                    with contextlib.suppress(Exception):
                        await client.stop()
                    raise
                self._client = client
            return self._client

    async def _discard(self, client: AIOKafkaProducer | None) -> None:
        if client is None:
            return
        async with self._lock:
            current = self._client is client
            self._client = None if current else self._client
        if not current:
            return
        with contextlib.suppress(TimeoutError, *KAFKA_AWAY, KafkaError):
            async with asyncio.timeout(_STOP_TIMEOUT_SECONDS):
                await client.stop()
