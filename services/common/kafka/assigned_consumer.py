"""The consumer port without a group: every partition of its topics, and offsets that are kept elsewhere.

For a service of which one process at a time is in charge, and which knows by other means who that is: there is nobody
to share partitions with, and nothing to wait for. A partition that is added to a topic is read from the next start on.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import UnknownTopicOrPartitionError

from evenkeel.services.common.backoff import Backoff, Reachability, persist
from evenkeel.services.common.kafka.client import (
    KAFKA_AWAY,
    KAFKA_REFUSES,
    KafkaClientConfig,
    KafkaError,
    consumed_record,
)
from evenkeel.services.common.kafka.ports import AssignmentListener
from evenkeel.services.common.kafka.records import ConsumedRecord, Partition

_REQUEST_TIMEOUT_SECONDS = 5.0


class OffsetStore(Protocol):
    """Where the offsets are."""

    async def load_offsets(self) -> Mapping[Partition, int]:
        """The first offset of each partition that must be read; waits for as long as the store is away."""
        ...

    async def save_offsets(self, offsets: Mapping[Partition, int]) -> bool:
        """Durable on return; False when the store is away."""
        ...


class AssignedConsumer:
    """Reads topics as a whole; see :class:`~evenkeel.services.common.kafka.ports.Consumer`."""

    def __init__(
        self,
        config: KafkaClientConfig,
        *,
        topics: Collection[str],
        offsets: OffsetStore,
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            config: Where Kafka is.
            topics: What to read.
            offsets: How far everything was read.
            on_change: Told (reachable, problem) when Kafka goes away or comes back.
        """
        self._config = config
        self._topics = tuple(topics)
        self._offsets = offsets
        self._known: Mapping[Partition, int] = {}
        self._reachability = Reachability("kafka (consumer)", on_change)
        self._client: AIOKafkaConsumer | None = None
        self._listener: AssignmentListener | None = None
        self._ends = Backoff(first_seconds=0.25, longest_seconds=10.0)

    async def start(self, listener: AssignmentListener) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        self._listener = listener
        partitions = await persist(self._connect, transient=KAFKA_AWAY, reachability=self._reachability)
        self._known = await self._offsets.load_offsets()
        self._started().assign([TopicPartition(*each) for each in partitions])
        await listener.assigned(partitions)

    async def _connect(self) -> list[Partition]:
        """All partitions of the topics."""
        client = AIOKafkaConsumer(**self._config.reader_arguments())
        try:
            await client.start()
            # The library's own way to a topic's partitions knows those only that are read already.
            cluster = await client._client.fetch_all_metadata()
            numbers = {topic: cluster.partitions_for_topic(topic) for topic in self._topics}
            missing = [topic for topic, found in numbers.items() if not found]
            if missing:
                raise UnknownTopicOrPartitionError(", ".join(missing))
        except BaseException:
            with contextlib.suppress(*KAFKA_AWAY, KafkaError):
                await client.stop()
            raise
        self._client = client
        return [Partition(topic, number) for topic, found in numbers.items() for number in sorted(found)]

    async def poll(self, *, timeout_seconds: float, max_records: int) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        try:
            fetched = await self._started().getmany(timeout_ms=round(timeout_seconds * 1000), max_records=max_records)
        except KAFKA_REFUSES:
            raise
        except KafkaError as error:  # the library's client has ended, and never works again
            self._reachability.down(error)
            await self.stop()
            await asyncio.sleep(self._ends.next_seconds())
            assert self._listener is not None
            await self.start(self._listener)
            return {}
        self._ends.reset()
        by_partition = {Partition(*each): raw for each, raw in fetched.items()}
        return {each: [consumed_record(each, one) for one in raw] for each, raw in by_partition.items()}

    def seek(self, partition: Partition, offset: int) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        self._started().seek(TopicPartition(*partition), offset)

    async def start_offsets(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client = self._started()
        unknown = [TopicPartition(*each) for each in partitions if each not in self._known]

        async def firsts() -> dict[Partition, int]:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                found = await client.beginning_offsets(unknown)
            return {Partition(*each): int(offset) for each, offset in found.items()}

        found = await persist(firsts, transient=KAFKA_AWAY, reachability=self._reachability) if unknown else {}
        return {each: self._known.get(each, found.get(each, 0)) for each in partitions}

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        return not offsets or await self._offsets.save_offsets(offsets)

    async def unread(self) -> Mapping[Partition, int]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client = self._client
        if client is None:
            raise OSError("no client: it begins again")
        assigned = list(client.assignment())
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                ends = await client.end_offsets(assigned) if assigned else {}
                positions = {each: await client.position(each) for each in assigned}
        except (*KAFKA_AWAY, KafkaError) as error:
            self._reachability.down(error)
            raise OSError(f"Kafka does not answer: {error!r}") from error
        self._reachability.up()
        return {Partition(*each): max(0, ends[each] - positions[each]) for each in assigned}

    async def stop(self) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError, *KAFKA_AWAY, KafkaError):
                async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                    await client.stop()

    def _started(self) -> AIOKafkaConsumer:
        assert self._client is not None, "start() comes first"
        return self._client
