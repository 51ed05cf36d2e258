"""The consumer port without a group: every partition of its topics, and offsets that are kept elsewhere.

For a service of which one process at a time is in charge, and which knows by other means who that is: there is nobody
to share partitions with, and nothing to wait for. A partition that is added to a topic is read from the next start on.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import UnknownTopicOrPartitionError

from evenkeel.services.common.backoff import persist
from evenkeel.services.common.kafka.client import KAFKA_AWAY, KafkaClientConfig
from evenkeel.services.common.kafka.ports import AssignmentListener
from evenkeel.services.common.kafka.reading import REQUEST_TIMEOUT_SECONDS, ReadingConsumer
from evenkeel.services.common.kafka.records import Partition


class OffsetStore(Protocol):
    """Where the offsets are."""

    async def load_offsets(self) -> Mapping[Partition, int]:
        """The first offset of each partition that must be read; waits for as long as the store is away."""
        ...

    async def save_offsets(self, offsets: Mapping[Partition, int]) -> bool:
        """Durable on return; False when the store is away."""
        ...


class AssignedConsumer(ReadingConsumer):
    """Reads topics as a whole; see :class:`~evenkeel.services.common.kafka.ports.Consumer`.

    Args:
        config: Where Kafka is.
        topics: What to read.
        offsets: How far everything was read.
        on_change: Told (reachable, problem) when Kafka goes away or comes back.
    """

    def __init__(
        self,
        config: KafkaClientConfig,
        *,
        topics: Collection[str],
        offsets: OffsetStore,
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        super().__init__(config, topics=topics, on_change=on_change)
        self._offsets = offsets
        self._known: Mapping[Partition, int] = {}

    async def start(self, listener: AssignmentListener) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        await super().start(listener)
        self._known = await self._offsets.load_offsets()
        await listener.assigned(sorted(Partition(*each) for each in self._started().assignment()))

    def _new_client(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(**self._config.reader_arguments())

    async def _begin(self, client: AIOKafkaConsumer) -> None:
        await super()._begin(client)
        # The library's own way to a topic's partitions knows those only that are read already.
        cluster = await client._client.fetch_all_metadata()
        numbers = {topic: cluster.partitions_for_topic(topic) for topic in self._topics}
        missing = [topic for topic, found in numbers.items() if not found]
        if missing:
            raise UnknownTopicOrPartitionError(", ".join(missing))
        client.assign([TopicPartition(topic, number) for topic, found in numbers.items() for number in found])

    async def start_offsets(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client = self._started()
        unknown = [TopicPartition(*each) for each in partitions if each not in self._known]

        async def firsts() -> dict[Partition, int]:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                found = await client.beginning_offsets(unknown)
            return {Partition(*each): int(offset) for each, offset in found.items()}

        found = await persist(firsts, transient=KAFKA_AWAY, reachability=self._reachability) if unknown else {}
        return {each: self._known.get(each, found.get(each, 0)) for each in partitions}

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        return not offsets or await self._offsets.save_offsets(offsets)
