"""Reading without a group: from where the store says, and nobody to share with."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

import pytest
from prometheus_client import CollectorRegistry

from evenkeel.services.common.kafka import (
    ConsumeLoop,
    DeadLetters,
    KafkaClientConfig,
    KafkaProducer,
    LoopConfig,
    OutgoingRecord,
    Partition,
)
from evenkeel.services.common.kafka.assigned_consumer import AssignedConsumer
from evenkeel.services.common.metrics import KafkaMetrics
from evenkeel.services.common.worker import Worker
from tests.fakes.kafka_contract import Collector, decode_number

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


class Offsets:
    """Offsets in memory, of a store that may be away."""

    def __init__(self) -> None:
        self.known: dict[Partition, int] = {}
        self.is_away = False

    async def load_offsets(self) -> Mapping[Partition, int]:
        return dict(self.known)

    async def save_offsets(self, offsets: Mapping[Partition, int]) -> bool:
        if not self.is_away:
            self.known.update(offsets)
        return not self.is_away


async def read(bootstrap: str, topic: str, offsets: Offsets, enough: Callable[[Collector], bool]) -> Collector:
    """What one process reads until it is enough and, at its end, committed."""
    config = KafkaClientConfig(bootstrap_servers=bootstrap, client_id="test-assigned", security={})
    metrics, handler = KafkaMetrics(CollectorRegistry()), Collector()
    producer = KafkaProducer(config, metrics)
    await producer.start()
    loop = ConsumeLoop(
        AssignedConsumer(config, topics=[topic], offsets=offsets),
        handler,
        decoders={topic: decode_number},
        dead_letters=DeadLetters(producer, metrics, group="test"),
        metrics=metrics,
        worker=Worker(),
        config=LoopConfig(checkpoint_seconds=0.05),
    )
    running = asyncio.create_task(loop.run())
    await handler.until(lambda: enough(handler))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await producer.stop()
    return handler


async def write(producer: KafkaProducer, topic: str, numbers: Iterable[int]) -> None:
    """Each under a key of its own, so that all partitions get some."""
    records = [OutgoingRecord(topic=topic, key=str(each).encode(), value=str(each).encode()) for each in numbers]
    await producer.send_all(records)


async def test_each_process_reads_all_partitions_from_where_the_last_one_ended(
    kafka_bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic, offsets = new_topic(num_partitions=3), Offsets()
    config = KafkaClientConfig(bootstrap_servers=kafka_bootstrap, client_id="test-writer", security={})
    producer = KafkaProducer(config, KafkaMetrics(CollectorRegistry()))
    await producer.start()
    await write(producer, topic, range(30))
    first = await read(kafka_bootstrap, topic, offsets, lambda seen: len(seen.numbers) == 30)
    assert sorted(first.numbers) == list(range(30))
    assert first.assignments == [{Partition(topic, number) for number in range(3)}]
    await write(producer, topic, range(30, 35))
    offsets.is_away = True
    for _ in range(2):  # the first of them cannot say how far it came
        again = await read(kafka_bootstrap, topic, offsets, lambda seen: len(seen.numbers) == 5)
        assert sorted(again.numbers) == list(range(30, 35))
    await producer.stop()
