"""The consumer port on aiokafka: a static group member that commits by hand."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError

from evenkeel.services.common.backoff import persist
from evenkeel.services.common.kafka.client import KAFKA_AWAY, CommitFailedError, KafkaClientConfig, KafkaError
from evenkeel.services.common.kafka.reading import REQUEST_TIMEOUT_SECONDS, ReadingConsumer
from evenkeel.services.common.kafka.records import Partition


class KafkaConsumer(ReadingConsumer):
    """Reads topics as a member of a group; see :class:`~evenkeel.services.common.kafka.ports.Consumer`.

    Args:
        config: Where Kafka is; its ``client_id`` is the static member's id.
        topics: What to read.
        group: Name of the group: the service's.
        on_change: Told (reachable, problem) when Kafka goes away or comes back.
    """

    def __init__(
        self,
        config: KafkaClientConfig,
        *,
        topics: Collection[str],
        group: str,
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        super().__init__(config, topics=topics, on_change=on_change)
        self._group = group
        # When the broker answered the last two times, by the machine's clock, as the library notes it.
        self._answers: dict[Partition, tuple[float | None, float | None]] = {}

    def _new_client(self) -> AIOKafkaConsumer:
        client = AIOKafkaConsumer(**self._config.consumer_arguments(group=self._group))
        client.subscribe(self._topics, listener=_Bridge(self._assigned, self._revoked))
        return client

    async def start_offsets(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client = self._started()
        asked = [TopicPartition(*partition) for partition in partitions]

        async def ask() -> dict[Partition, int]:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                # The library's own way asks for each partition by itself.
                told = await client._coordinator.fetch_committed_offsets(asked)
                committed = {each: said.offset for each, said in told.items() if said.offset >= 0}
                unknown = [each for each in asked if each not in committed]
                firsts = await client.beginning_offsets(unknown) if unknown else {}
            return {Partition(*each): offset for each, offset in {**committed, **firsts}.items()}

        return await persist(ask, transient=KAFKA_AWAY, reachability=self._reachability)

    def nothing_more_since(self, partition: Partition, next_offset: int) -> float | None:
        """How many seconds ago the broker said that a partition has no record from an offset on; None if it has one.

        None, too, if it is away. What a broker says is true of the moment at which it was asked, which is when it had
        answered the time before: how late its answer is looked at does not matter.
        """
        client, asked = self._client, TopicPartition(*partition)
        if client is None or asked not in client.assignment():
            return None
        end, at_milliseconds = client.highwater(asked), client.last_poll_timestamp(asked)
        if end is None or at_milliseconds is None or next_offset < end:
            return None
        before, newest = self._answers.get(partition, (None, None))
        if at_milliseconds / 1000 != newest:
            before, newest = newest, at_milliseconds / 1000
            self._answers[partition] = before, newest
        return None if before is None else max(0.0, time.time() - before)

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client = self._started()
        if not offsets:
            return True
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                await client.commit({TopicPartition(*partition): offset for partition, offset in offsets.items()})
        except (CommitFailedError, IllegalStateError):  # a rebalance took the partitions away
            return False
        except (*KAFKA_AWAY, KafkaError) as error:
            if isinstance(error, KafkaError) and not (error.retriable or isinstance(error, KAFKA_AWAY)):
                raise
            self._reachability.down(error)
            return False
        self._reachability.up()
        return True

    async def _assigned(self, partitions: Collection[Partition]) -> None:
        assert self._listener is not None
        await self._keep_failure(self._listener.assigned(partitions))

    async def _revoked(self, partitions: Collection[Partition]) -> None:
        assert self._listener is not None
        if partitions:
            await self._keep_failure(self._listener.revoked(partitions))

    async def _keep_failure(self, call: Coroutine[object, object, None]) -> None:
        try:
            await call
        except Exception as error:
            self._failure = self._failure or error
            raise


_Told = Callable[[Collection[Partition]], Coroutine[object, object, None]]


class _Bridge(ConsumerRebalanceListener):  # type: ignore[misc] # the library is untyped
    """Hands the library's calls on."""

    def __init__(self, assigned: _Told, revoked: _Told) -> None:
        self._assigned, self._revoked = assigned, revoked

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._revoked([Partition(*each) for each in revoked])

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._assigned([Partition(*each) for each in assigned])
