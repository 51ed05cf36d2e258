import contextlib
from collections.abc import AsyncIterator

import pytest

from evenkeel.services.common.kafka.ports import Consumer, Producer
from tests.fakes.kafka import FakeBroker, FakeConsumer, FakeProducer
from tests.fakes.kafka_contract import GROUP, KafkaContract


class FakeHarness:
    topic = "numbers"

    def __init__(self) -> None:
        self.broker = FakeBroker(num_partitions=2)

    @contextlib.asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        yield FakeProducer(self.broker)

    def consumer(self, *, topic: str, instance: str, group: str = GROUP) -> Consumer:
        return FakeConsumer(self.broker, topics=[topic], group=group)


class TestFakeKafka(KafkaContract):
    @pytest.fixture
    def harness(self) -> FakeHarness:
        return FakeHarness()
