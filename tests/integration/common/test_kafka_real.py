import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from services.common.kafka import KafkaClientConfig, KafkaConsumer, KafkaProducer
from services.common.kafka.ports import Consumer, Producer
from services.common.metrics import KafkaMetrics
from stack.topics import WantedTopic, apply_topics
from tests.fakes.kafka_contract import GROUP, KafkaContract


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
