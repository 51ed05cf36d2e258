import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest
from aiokafka.errors import KafkaError
from prometheus_client import CollectorRegistry

from services.common.kafka import KafkaClientConfig, KafkaConsumer, KafkaProducer
from services.common.kafka.ports import Consumer, Producer
from services.common.metrics import KafkaMetrics
from stack.topics import WantedTopic, apply_topics
from tests.fakes.kafka_contract import GROUP, Collector, KafkaContract, numbers, reading, write


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
        return KafkaClientConfig(bootstrap_servers=self._bootstrap_servers, client_id=f"test-{instance}", security={})

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
