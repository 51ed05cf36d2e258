"""What every implementation of the Kafka ports must do: run against the fake in memory and against the real broker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Protocol

import pytest
from prometheus_client import CollectorRegistry

from evenkeel.services.common.kafka import (
    Batch,
    ConsumeLoop,
    DeadLetters,
    LoopConfig,
    OutgoingRecord,
    Partition,
    Rejection,
)
from evenkeel.services.common.kafka.ports import Consumer, Producer
from evenkeel.services.common.kafka.records import ConsumedRecord
from evenkeel.services.common.metrics import KafkaMetrics
from evenkeel.services.common.worker import Worker

GROUP = "readers"


class Harness(Protocol):
    """One topic with two partitions, its dead letters, and clients for it."""

    topic: str

    def producer(self) -> contextlib.AbstractAsyncContextManager[Producer]: ...

    def consumer(self, *, topic: str, instance: str, group: str = GROUP) -> Consumer: ...


def decode_number(record: ConsumedRecord) -> int:
    return int((record.value or b"").decode())


class Collector:
    """A handler that keeps what it gets; it may hold commits back or start from offsets of its own."""

    def __init__(self, changed: asyncio.Condition | None = None) -> None:
        self.numbers: list[int] = []
        self.assignments: list[set[Partition]] = []
        self.revocations: list[set[Partition]] = []
        self.starts: dict[Partition, int] = {}
        self.commit_limit: int | None = None
        self.positions: Mapping[Partition, int] = {}
        self.changed = changed or asyncio.Condition()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(100), self.changed:
            await self.changed.wait_for(condition)

    async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        self.assignments.append(set(partitions))
        await self._notify()
        return {each: offset for each, offset in self.starts.items() if each in partitions}

    async def handle(self, batch: Batch[int]) -> Sequence[Rejection]:
        rejections = []
        for message in batch.messages:
            if message.content < 0:
                rejections.append(Rejection(record=message.record, error="negative", reason="below zero"))
            else:
                self.numbers.append(message.content)
        await self._notify()
        return rejections

    async def tick(self, now_seconds: float) -> None:
        assert now_seconds > 0
        await self._notify()

    async def checkpoint(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        self.positions = positions
        if self.commit_limit is None:
            return positions
        return {each: min(offset, self.commit_limit) for each, offset in positions.items()}

    async def revoked(self, partitions: Collection[Partition]) -> None:
        self.revocations.append(set(partitions))
        await self._notify()


@contextlib.asynccontextmanager
async def reading(
    harness: Harness,
    collector: Collector,
    producer: Producer,
    *,
    instance: str = "one",
    consumer: Consumer | None = None,
    worker: Worker | None = None,
    max_records: int = 20_000,
) -> AsyncIterator[asyncio.Task[None]]:
    metrics = KafkaMetrics(CollectorRegistry())
    loop = ConsumeLoop(
        consumer or harness.consumer(topic=harness.topic, instance=instance),
        collector,
        decoders={harness.topic: decode_number},
        dead_letters=DeadLetters(producer, metrics, group=GROUP),
        metrics=metrics,
        worker=worker or Worker(),
        config=LoopConfig(checkpoint_seconds=0.05, tick_seconds=0.02, max_records=max_records),
    )
    task = asyncio.create_task(loop.run())
    try:
        await asyncio.wait(
            [task, asyncio.create_task(collector.until(lambda: bool(collector.assignments)))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def write(harness: Harness, producer: Producer, values: Sequence[bytes], *, key: bytes = b"key") -> None:
    await producer.send_all([OutgoingRecord(topic=harness.topic, key=key, value=value) for value in values])


def numbers(*values: int) -> list[bytes]:
    return [str(value).encode() for value in values]


class KafkaContract:
    """Subclass it and provide a fixture ``harness``."""

    @pytest.mark.asyncio
    async def test_records_of_one_key_arrive_once_and_in_order(self, harness: Harness) -> None:
        collector = Collector()
        async with harness.producer() as producer, reading(harness, collector, producer):
            await write(harness, producer, numbers(*range(500)))
            await collector.until(lambda: len(collector.numbers) >= 500)
        assert collector.numbers == list(range(500))

    @pytest.mark.asyncio
    async def test_a_restart_goes_on_after_the_last_commit(self, harness: Harness) -> None:
        first, second = Collector(), Collector()
        async with harness.producer() as producer:
            async with reading(harness, first, producer):
                await write(harness, producer, numbers(1, 2, 3))
                await first.until(lambda: len(first.numbers) == 3)
            async with reading(harness, second, producer):
                await write(harness, producer, numbers(4))
                await second.until(lambda: bool(second.numbers))
        assert second.numbers == [4]

    @pytest.mark.asyncio
    async def test_a_restart_reads_again_what_the_handler_held_back(self, harness: Harness) -> None:
        first, second = Collector(), Collector()
        first.commit_limit = 1
        async with harness.producer() as producer:
            async with reading(harness, first, producer):
                await write(harness, producer, numbers(1, 2, 3))
                await first.until(lambda: len(first.numbers) == 3)
            async with reading(harness, second, producer):
                await second.until(lambda: len(second.numbers) == 2)
        assert second.numbers == [2, 3]

    @pytest.mark.asyncio
    async def test_the_offset_of_a_snapshot_wins_over_the_committed_one(self, harness: Harness) -> None:
        first, second = Collector(), Collector()
        async with harness.producer() as producer:
            async with reading(harness, first, producer):
                await write(harness, producer, numbers(1, 2, 3, 4))
                await first.until(lambda: len(first.numbers) == 4)
            where = next(each for each, offset in first.positions.items() if offset == 4)
            second.starts = {where: 2}
            async with reading(harness, second, producer):
                await second.until(lambda: len(second.numbers) == 2)
        assert second.numbers == [3, 4]

    @pytest.mark.asyncio
    async def test_poison_goes_to_the_dead_letters_with_its_bytes_and_the_stream_goes_on(
        self, harness: Harness
    ) -> None:
        collector = Collector()
        async with harness.producer() as producer:
            async with reading(harness, collector, producer):
                await write(harness, producer, [b"1", b"\xff\x00poison", b"-7", b"2"])
                await collector.until(lambda: len(collector.numbers) == 2)
            letters = await read_all(harness, harness.topic + ".dlq", 2)
        assert collector.numbers == [1, 2]
        assert [each.value for each in letters] == [b"\xff\x00poison", b"-7"]
        headers = dict(letters[1].headers)
        assert headers["dlq-topic"] == harness.topic.encode()
        assert headers["dlq-offset"] == b"2"
        assert headers["dlq-error"] == b"negative"
        assert headers["dlq-reason"] == b"below zero"
        assert headers["dlq-group"] == GROUP.encode()
        assert headers["dlq-attempts"] == b"1"
        assert letters[0].key == b"key"

    @pytest.mark.asyncio
    async def test_two_instances_share_the_partitions_and_nothing_is_lost(self, harness: Harness) -> None:
        changed = asyncio.Condition()
        first, second = Collector(changed), Collector(changed)
        async with harness.producer() as producer, reading(harness, first, producer, instance="one"):
            await write(harness, producer, numbers(*range(20)))
            await first.until(lambda: len(first.numbers) == 20)
            async with reading(harness, second, producer, instance="two"):

                def shared() -> bool:
                    """Each has one; before, the first may be given everything once more, or the second nothing."""
                    newest = [each.assignments[-1] for each in (first, second) if each.assignments]
                    return [len(each) for each in newest] == [1, 1] and set.union(*newest) == first.assignments[0]

                await second.until(shared)
                for index in range(40):
                    await write(harness, producer, numbers(100 + index), key=str(index).encode())
                expected = set(range(20)) | set(range(100, 140))
                await second.until(lambda: set(first.numbers) | set(second.numbers) == expected)
        assert first.revocations

    @pytest.mark.asyncio
    async def test_partitions_are_given_away_while_their_state_still_loads(self, harness: Harness) -> None:
        class Slow(Collector):
            async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
                starts = await super().assigned(partitions)
                if len(self.assignments) == 1:
                    await asyncio.Event().wait()
                return starts

        changed = asyncio.Condition()
        first, second = Slow(changed), Collector(changed)
        async with harness.producer() as producer, reading(harness, first, producer, instance="one"):
            for index in range(40):
                await write(harness, producer, numbers(index), key=str(index).encode())
            async with asyncio.timeout(60), reading(harness, second, producer, instance="two"):
                await second.until(lambda: set(first.numbers) | set(second.numbers) == set(range(40)))
        assert first.numbers
        assert second.numbers

    @pytest.mark.asyncio
    async def test_what_a_turn_leaves_of_a_fetch_is_taken_once_also_when_partitions_move_meanwhile(
        self, harness: Harness
    ) -> None:
        changed = asyncio.Condition()
        first, second = Collector(changed), Collector(changed)
        async with harness.producer() as producer:
            for index in range(60):
                await write(harness, producer, numbers(index), key=str(index).encode())
            async with reading(harness, first, producer, max_records=50):
                await first.until(lambda: len(first.numbers) >= 7)
                async with reading(harness, second, producer, instance="two", max_records=50):
                    await second.until(lambda: bool(second.assignments and second.assignments[-1]))
                    await second.until(lambda: set(first.numbers) | set(second.numbers) == set(range(60)))
        assert sorted(first.numbers + second.numbers) == list(range(60))

    @pytest.mark.asyncio
    async def test_an_exception_of_the_handler_ends_the_loop(self, harness: Harness) -> None:
        class Broken(Collector):
            async def handle(self, batch: Batch[int]) -> Sequence[Rejection]:
                raise RuntimeError("half changed")

        async with harness.producer() as producer:
            await write(harness, producer, numbers(1))
            with pytest.raises(RuntimeError, match="half changed"):
                await read_until_it_ends(harness, Broken(), producer)


async def read_until_it_ends(harness: Harness, collector: Collector, producer: Producer) -> None:
    async with reading(harness, collector, producer) as task:
        await asyncio.wait([task], timeout=20)


async def read_all(harness: Harness, topic: str, count: int) -> list[ConsumedRecord]:
    """The first ``count`` records of a topic."""

    class Everything:
        async def assigned(self, partitions: Collection[Partition]) -> None:
            for partition, offset in (await consumer.start_offsets(partitions)).items():
                consumer.seek(partition, offset)

        async def revoked(self, partitions: Collection[Partition]) -> None:
            return None

    consumer = harness.consumer(topic=topic, instance="reader", group="all")
    await consumer.start(Everything())
    records: list[ConsumedRecord] = []
    try:
        async with asyncio.timeout(100):
            while len(records) < count:
                for fetched in (await consumer.poll(timeout_seconds=0.1, max_records=100)).values():
                    records.extend(fetched)
    finally:
        await consumer.stop()
    return records
