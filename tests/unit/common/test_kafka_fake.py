import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from evenkeel.services.common.kafka.ports import Consumer, Producer
from evenkeel.services.common.kafka.records import ConsumedRecord, Partition
from tests.fakes.kafka import FakeBroker, FakeConsumer, FakeProducer
from tests.fakes.kafka_contract import GROUP, Collector, KafkaContract, Rereading, numbers, reading, write


class FakeHarness:
    topic = "numbers"

    def __init__(self) -> None:
        self.broker = FakeBroker(num_partitions=2)

    @contextlib.asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        yield FakeProducer(self.broker)

    def consumer(self, *, topic: str, instance: str, group: str = GROUP) -> Consumer:
        return FakeConsumer(self.broker, topics=[topic], group=group)


class Backwards(FakeConsumer):
    """Gives the partition first that it keeps when another member comes last, so that it waits."""

    def _fetch(self, max_records: int) -> dict[Partition, list[ConsumedRecord]]:
        self.positions = dict(sorted(self.positions.items(), reverse=True))
        return super()._fetch(max_records)


class TestFakeKafka(KafkaContract):
    @pytest.fixture
    def harness(self) -> FakeHarness:
        return FakeHarness()

    @pytest.mark.asyncio
    async def test_what_a_turn_left_of_a_fetch_is_forgotten_where_a_snapshot_begins_before_it(
        self, harness: FakeHarness
    ) -> None:
        backwards = Backwards(harness.broker, topics=[harness.topic], group=GROUP)
        changed = asyncio.Condition()
        first, second = Rereading(changed), Collector(changed)
        async with harness.producer() as producer:
            for index in range(60):
                await write(harness, producer, numbers(index), key=str(index).encode())
            async with reading(harness, first, producer, consumer=backwards, turn_seconds=0.0, max_records=50):
                await first.until(lambda: len(first.numbers) >= 7)
                async with reading(harness, second, producer, instance="two", turn_seconds=0.0, max_records=50):
                    await second.until(lambda: len(first.assignments) >= 2 and len(first.assignments[-1]) == 1)
                    await second.until(lambda: bool(first.offsets))
                    assert first.offsets == list(range(len(first.offsets)))
