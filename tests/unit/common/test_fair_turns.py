"""A partition with a backlog gets its part of the turns, and no other waits for all of it."""

from collections.abc import Sequence

import pytest

from evenkeel.services.common.kafka import Batch, Partition, Rejection
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
