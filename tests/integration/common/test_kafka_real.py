import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from prometheus_client import CollectorRegistry

from evenkeel.services.common.kafka import (
    Batch,
    KafkaClientConfig,
    KafkaConsumer,
    KafkaProducer,
    Partition,
    Rejection,
)
from evenkeel.services.common.kafka.ports import Consumer, Producer
from evenkeel.services.common.metrics import KafkaMetrics
from evenkeel.services.common.worker import Worker
from evenkeel.stack.kafka.topics import WantedTopic, apply_topics
from tests.fakes.kafka_contract import GROUP, Collector, KafkaContract, numbers, read_all, reading, write

SESSION_SECONDS = 6.0
"""The shortest that a broker takes unless it is told otherwise."""


class RealHarness:
    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._unique = uuid.uuid4().hex[:8]
        self.topic = f"test.numbers.{self._unique}"
        apply_topics(
            bootstrap_servers,
            [WantedTopic(name=name, num_partitions=2) for name in (self.topic, f"{self.topic}.dlq")],
        )

    def config(self, instance: str) -> KafkaClientConfig:
        return KafkaClientConfig(
            bootstrap_servers=self._bootstrap_servers,
            client_id=f"test-{instance}",
            security={},
            session_timeout_seconds=SESSION_SECONDS,
        )

    @contextlib.asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        producer = KafkaProducer(self.config("producer"), KafkaMetrics(CollectorRegistry()))
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    def consumer(self, *, topic: str, instance: str, group: str = GROUP) -> Consumer:
        return KafkaConsumer(self.config(instance), topics=[topic], group=f"{group}-{self._unique}")


@pytest.mark.integration
class TestRealKafka(KafkaContract):
    @pytest.fixture
    def harness(self, kafka_bootstrap: str) -> RealHarness:
        return RealHarness(kafka_bootstrap)

    @pytest.mark.asyncio
    async def test_a_client_of_the_library_that_ended_is_replaced_and_no_record_is_lost(
        self, harness: RealHarness
    ) -> None:
        # As after another process with our instance's id took our place, which ends the library's coordination.
        problem = KafkaError("Unexpected error during coordination UnknownError()")

        async def ended(**_: object) -> None:
            raise problem

        collector, consumer = Collector(), harness.consumer(topic=harness.topic, instance="one")
        async with harness.producer() as producer, reading(harness, collector, producer, consumer=consumer) as task:
            await write(harness, producer, numbers(*range(10)))
            await collector.until(lambda: len(collector.numbers) >= 10)
            vars(consumer)["_client"].getmany = ended
            await write(harness, producer, numbers(*range(10, 20)))
            await collector.until(lambda: len(collector.assignments) >= 2 and collector.numbers[-1] == 19)
            assert not task.done()
        assert sorted(set(collector.numbers)) == list(range(20))

    @pytest.mark.asyncio
    async def test_a_handler_slower_than_a_session_keeps_its_place_and_reads_nothing_twice(
        self, harness: RealHarness
    ) -> None:
        worker = Worker()
        collector = Slow(worker)
        async with harness.producer() as producer:
            await write(harness, producer, numbers(*range(2000)))
            async with reading(harness, collector, producer, worker=worker):
                await collector.until(lambda: len(collector.numbers) >= 2000)
                await write(harness, producer, numbers(2000))  # whoever had lost its place would have joined again
                await collector.until(lambda: collector.numbers[-1] == 2000)
        assert collector.numbers == list(range(2001))
        assert len(collector.assignments) == 1
        assert collector.num_batches > 4

    @pytest.mark.asyncio
    async def test_the_broker_says_since_when_nothing_more_is_there(self, harness: RealHarness) -> None:
        collector = Collector()
        consumer = KafkaConsumer(harness.config("one"), topics=[harness.topic], group=f"{GROUP}-{uuid.uuid4().hex}")
        async with harness.producer() as producer, reading(harness, collector, producer, consumer=consumer):
            await write(harness, producer, numbers(1, 2, 3))
            await collector.until(lambda: len(collector.numbers) == 3)
            [partition] = [each.partition for each in await read_all(harness, harness.topic, 3) if each.offset == 2]
            async with asyncio.timeout(60):
                while (since := consumer.nothing_more_since(partition, 3)) is None:  # noqa: ASYNC110 - the library's own task
                    await asyncio.sleep(0.01)
                first_seconds = time.time() - since
                while time.time() - (consumer.nothing_more_since(partition, 3) or 0.0) < first_seconds + 0.05:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert since >= 0.0
            assert consumer.nothing_more_since(partition, 2) is None, "there is a record from there on"
            assert consumer.nothing_more_since(Partition("none", 0), 0) is None

    @pytest.mark.asyncio
    async def test_of_a_transaction_only_what_was_committed_is_read(
        self, harness: RealHarness, kafka_bootstrap: str
    ) -> None:
        collector = Collector()
        async with harness.producer() as producer, reading(harness, collector, producer):
            in_transactions = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=harness.topic)
            await in_transactions.start()
            for value in (b"1", b"2", b"3"):
                await in_transactions.begin_transaction()
                await in_transactions.send_and_wait(harness.topic, value, key=b"key")
                await (in_transactions.abort_transaction() if value == b"2" else in_transactions.commit_transaction())
            await in_transactions.stop()
            await write(harness, producer, numbers(4))
            await collector.until(lambda: len(collector.numbers) >= 3)
        assert collector.numbers == [1, 3, 4]


class Slow(Collector):
    """Its work on the first batches lasts longer than the broker waits for a member that it does not hear of."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker
        self.num_batches = 0

    async def handle(self, batch: Batch[int]) -> Sequence[Rejection]:
        self.num_batches += 1
        if self.num_batches <= 2:
            await self.worker.run(threading.Event().wait, SESSION_SECONDS + 1.0)
        return await super().handle(batch)
