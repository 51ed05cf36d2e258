"""The consumer port on aiokafka: a static group member that commits by hand."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError

from evenkeel.services.common.backoff import Backoff, Reachability, persist
from evenkeel.services.common.kafka.assignment_pace import MOST_IN_WINDOW, WINDOW_SECONDS, AssignmentPace
from evenkeel.services.common.kafka.client import (
    KAFKA_AWAY,
    KAFKA_REFUSES,
    CommitFailedError,
    KafkaClientConfig,
    KafkaError,
    consumed_record,
)
from evenkeel.services.common.kafka.ports import AssignmentListener
from evenkeel.services.common.kafka.records import ConsumedRecord, Partition

_REQUEST_TIMEOUT_SECONDS = 5.0
# A client that lasted so long did not end for what ended the one before it.
_CALM_SECONDS = 60.0

_log = structlog.get_logger(__name__)


class KafkaConsumer:
    """Reads topics as a member of a group; see :class:`~evenkeel.services.common.kafka.ports.Consumer`."""

    def __init__(
        self,
        config: KafkaClientConfig,
        *,
        topics: Collection[str],
        group: str,
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            config: Where Kafka is; its ``client_id`` is the static member's id.
            topics: What to read.
            group: Name of the group: the service's.
            on_change: Told (reachable, problem) when Kafka goes away or comes back.
        """
        self._config = config
        self._topics = tuple(topics)
        self._group = group
        self._reachability = Reachability("kafka (consumer)", on_change)
        self._ends, self._ended_at_seconds = Backoff(first_seconds=0.25, longest_seconds=10.0), 0.0
        self._client: AIOKafkaConsumer | None = None
        self._bridge: _ListenerBridge | None = None
        self._pace = AssignmentPace()
        # When the broker answered the last two times.
        self._answers: dict[Partition, tuple[float | None, float | None]] = {}

    async def start(self, listener: AssignmentListener) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        backoff = Backoff()
        while True:
            client = AIOKafkaConsumer(**self._config.consumer_arguments(group=self._group))
            self._bridge = _ListenerBridge(listener, self._note_assignment)
            self._client = client
            client.subscribe(self._topics, listener=self._bridge)
            try:
                await client.start()
            except KAFKA_AWAY as error:
                self._reachability.down(error)
                await self.stop()
                await asyncio.sleep(backoff.next_seconds())
            except BaseException:
                await self.stop()
                raise
            else:
                self._reachability.up()
                return

    async def poll(self, *, timeout_seconds: float, max_records: int) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client, bridge = self._started()
        try:
            fetched = await client.getmany(timeout_ms=round(timeout_seconds * 1000), max_records=max_records)
        except KAFKA_REFUSES:
            raise
        except KafkaError as error:
            if bridge.failure is not None:
                raise bridge.failure from error
            await self._join_again(error, bridge.listener)
            return {}
        if bridge.failure is not None:  # the library only logs what a listener raises
            raise bridge.failure
        records: dict[Partition, Sequence[ConsumedRecord]] = {}
        for topic_partition, raw in fetched.items():
            partition = Partition(*topic_partition)
            records[partition] = [consumed_record(partition, each) for each in raw]
        return records

    def seek(self, partition: Partition, offset: int) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client, _ = self._started()
        client.seek(TopicPartition(*partition), offset)

    async def start_offsets(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client, _ = self._started()
        asked = [TopicPartition(*partition) for partition in partitions]

        async def ask() -> dict[Partition, int]:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                committed = dict(zip(asked, await asyncio.gather(*map(client.committed, asked)), strict=True))
                unknown = [each for each, offset in committed.items() if offset is None]
                firsts = await client.beginning_offsets(unknown) if unknown else {}
            return {Partition(*each): offset for each, offset in {**committed, **firsts}.items() if offset is not None}

        return await persist(ask, transient=KAFKA_AWAY, reachability=self._reachability)

    def nothing_more_until(self, partition: Partition, next_offset: int) -> float | None:
        """Up to when the broker has said that a partition has no record from an offset on; None if it has, or is away.

        Unix seconds of this machine. What a broker says is true of the moment at which it was asked, which is when it
        had answered the time before: how late its answer is looked at does not matter.
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
        return before

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client, _ = self._started()
        if not offsets:
            return True
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                await client.commit({TopicPartition(*partition): offset for partition, offset in offsets.items()})
        except KAFKA_AWAY as error:
            self._reachability.down(error)
            return False
        except (CommitFailedError, IllegalStateError):  # a rebalance took the partitions away
            return False
        except KafkaError as error:
            if not error.retriable:
                raise
            self._reachability.down(error)
            return False
        self._reachability.up()
        return True

    async def unread(self) -> Mapping[Partition, int]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client = self._client
        if client is None:
            raise OSError("no client: it joins its group again")
        assigned = list(client.assignment())
        if not assigned:
            return {}
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                ends = await client.end_offsets(assigned)
                positions = {each: await client.position(each) for each in assigned}
        except IllegalStateError:  # a rebalance took the partitions away meanwhile
            return {}
        except (*KAFKA_AWAY, KafkaError) as error:
            self._reachability.down(error)
            raise OSError(f"Kafka does not answer: {error!r}") from error
        self._reachability.up()
        return {Partition(*each): max(0, ends[each] - positions[each]) for each in assigned}

    async def stop(self) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(TimeoutError, *KAFKA_AWAY, KafkaError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                await client.stop()

    async def _join_again(self, error: KafkaError, listener: AssignmentListener) -> None:
        """The library's client has ended, and never works again: a new one takes our place in the group.

        So it goes where another process has our instance's id: it took the place, and we take it back.
        """
        self._reachability.down(error)
        await self.stop()
        if time.monotonic() - self._ended_at_seconds > _CALM_SECONDS:
            self._ends.reset()
        await asyncio.sleep(self._ends.next_seconds())
        self._ended_at_seconds = time.monotonic()
        await self.start(listener)

    def _note_assignment(self) -> None:
        if self._pace.too_many(time.monotonic()):
            _log.warning(
                "partitions are assigned again and again: does another process run with the same id? "
                "EVENKEEL_INSTANCE_ID is to be one process's own",
                member=self._config.client_id,
                group=self._group,
                more_than=MOST_IN_WINDOW,
                in_seconds=WINDOW_SECONDS,
            )

    def _started(self) -> "tuple[AIOKafkaConsumer, _ListenerBridge]":
        assert self._client is not None, "start() comes first"
        assert self._bridge is not None
        return self._client, self._bridge


class _ListenerBridge(ConsumerRebalanceListener):  # type: ignore[misc] # the library is untyped
    """Hands the library's calls to the port's listener and keeps the first failure."""

    def __init__(self, listener: AssignmentListener, on_assigned: Callable[[], None]) -> None:
        self.listener = listener
        self._on_assigned = on_assigned
        self.failure: Exception | None = None

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        if revoked:
            await self._keep_failure(self.listener.revoked([Partition(*each) for each in revoked]))

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._on_assigned()
        await self._keep_failure(self.listener.assigned([Partition(*each) for each in assigned]))

    async def _keep_failure(self, call: Coroutine[object, object, None]) -> None:
        try:
            await call
        except Exception as error:
            self.failure = self.failure or error
            raise
