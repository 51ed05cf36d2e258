"""A partition with a backlog gets its part of the turns, small ones at first, and no other waits for all of it."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import pytest

from evenkeel.services.common.kafka import Batch, Partition, Rejection
from evenkeel.services.common.kafka.pace import FEWEST_RECORDS
from evenkeel.services.common.kafka.ports import Producer
from tests.fakes.kafka_contract import Collector, numbers, reading, write
from tests.unit.common.test_kafka_fake import FakeHarness

BACKLOG, BITE, LATE = 4000, 50, 4000
# In the first partition, whose records the client gives before it comes to the second's.
NOISY, QUIET = b"noisy", b"key"


class Meanwhile(Collector):
    """While it handles the first batch, something comes to the other partition."""

    def __init__(self, harness: FakeHarness, producer: Producer) -> None:
        super().__init__()
        self.harness, self.producer = harness, producer

    async def handle(self, batch: Batch[int]) -> Sequence[Rejection]:
        if not self.numbers:
            await write(self.harness, self.producer, numbers(LATE), key=QUIET)
        return await super().handle(batch)


@pytest.mark.asyncio
async def test_what_comes_to_another_partition_does_not_wait_for_a_backlog() -> None:
    harness = FakeHarness()
    async with harness.producer() as producer:
        await write(harness, producer, numbers(*range(BACKLOG)), key=NOISY)
        collector = Meanwhile(harness, producer)
        async with reading(harness, collector, producer, max_records=BITE):
            await collector.until(lambda: len(collector.numbers) > BACKLOG)
    assert len(harness.broker.logs[Partition(harness.topic, 0)]) == BACKLOG
    assert collector.numbers.index(LATE) <= 2 * BITE
    assert [each for each in collector.numbers if each != LATE] == list(range(BACKLOG))


class Sizes(Collector):
    """Notes how many records came together, and every assignment as -1."""

    def __init__(self, changed: asyncio.Condition) -> None:
        super().__init__(changed)
        self.sizes: list[int] = []

    async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        self.sizes.append(-1)
        return await super().assigned(partitions)

    async def handle(self, batch: Batch[int]) -> Sequence[Rejection]:
        self.sizes.append(len(batch.records))
        return await super().handle(batch)


@pytest.mark.asyncio
async def test_after_each_assignment_little_is_taken_at_first_for_it_may_cost_much() -> None:
    harness, changed = FakeHarness(), asyncio.Condition()
    first, second = Sizes(changed), Sizes(changed)
    async with harness.producer() as producer, reading(harness, first, producer):
        await write(harness, producer, numbers(*range(BACKLOG)), key=QUIET)
        await first.until(lambda: len(first.numbers) >= BACKLOG)
        async with reading(harness, second, producer):
            await write(harness, producer, numbers(*range(BACKLOG)), key=QUIET)
            await write(harness, producer, numbers(*range(BACKLOG)), key=NOISY)
            await first.until(lambda: len(first.numbers) + len(second.numbers) >= 3 * BACKLOG)
    for sizes in (first.sizes, second.sizes):
        assert max(sizes) > FEWEST_RECORDS
        begun = [size for before, size in pairwise(sizes) if before == -1 != size]
        assert max(begun) <= FEWEST_RECORDS
