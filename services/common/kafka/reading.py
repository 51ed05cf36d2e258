"""What all ways to read have in common: a client of the library, and another in its place when that has ended."""

import abc
import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError

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

REQUEST_TIMEOUT_SECONDS = 5.0
# A client that lasted so long did not end for what ended the one before it.
_CALM_SECONDS = 60.0

_log = structlog.get_logger(__name__)


class ReadingConsumer(abc.ABC):
    """Half of a :class:`~evenkeel.services.common.kafka.ports.Consumer`: all but whose partitions and offsets.

    Args:
        config: Where Kafka is.
        topics: What to read.
        on_change: Told (reachable, problem) when Kafka goes away or comes back.
    """

    def __init__(
        self,
        config: KafkaClientConfig,
        *,
        topics: Collection[str],
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        self._config, self._topics = config, tuple(topics)
        self._reachability = Reachability("kafka (consumer)", on_change)
        self._ends, self._ended_at_seconds = Backoff(first_seconds=0.25, longest_seconds=10.0), 0.0
        self._client: AIOKafkaConsumer | None = None
        self._listener: AssignmentListener | None = None
        # What the listener raised on the library's own task, which only logs it.
        self._failure: Exception | None = None

    async def start(self, listener: AssignmentListener) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        self._listener = listener
        await persist(self._connect, transient=KAFKA_AWAY, reachability=self._reachability)

    async def _connect(self) -> None:
        self._client = self._new_client()
        try:
            await self._begin(self._client)
        except BaseException:
            await self.stop()
            raise

    @abc.abstractmethod
    def _new_client(self) -> AIOKafkaConsumer:
        """One that is not started yet."""

    async def _begin(self, client: AIOKafkaConsumer) -> None:
        await client.start()

    async def poll(
        self, *, timeout_seconds: float, max_records: int, without: Collection[Partition] = ()
    ) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client, timeout_milliseconds = self._started(), round(timeout_seconds * 1000)
        asked = [each for each in client.assignment() if each not in without] if without else []
        fetched: Mapping[TopicPartition, Sequence[object]] = {}
        try:
            if asked or not without:
                fetched = await client.getmany(*asked, timeout_ms=timeout_milliseconds, max_records=max_records)
        except KAFKA_REFUSES:
            raise
        except KafkaError as error:
            if self._failure is None:
                await self._begin_again(error)
        if self._failure is not None:
            raise self._failure
        by_partition = {Partition(*each): raw for each, raw in fetched.items()}
        return {each: [consumed_record(each, one) for one in raw] for each, raw in by_partition.items()}

    def seek(self, partition: Partition, offset: int) -> None:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        self._started().seek(TopicPartition(*partition), offset)

    async def unread(self) -> Mapping[Partition, int]:
        """See :class:`~evenkeel.services.common.kafka.ports.Consumer`."""
        client = self._client
        if client is None:
            raise OSError("no client: it begins again")
        assigned = list(client.assignment())
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                ends = await client.end_offsets(assigned) if assigned else {}
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
        if client is not None:
            with contextlib.suppress(TimeoutError, *KAFKA_AWAY, KafkaError):
                async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                    await client.stop()

    async def _begin_again(self, error: KafkaError) -> None:
        """The library's client has ended, and never works again: a new one takes its place.

        So it goes where another process has our instance's id: it took our place in the group, and we take it back.
        """
        self._reachability.down(error)
        await self.stop()
        now_seconds = time.monotonic()
        if now_seconds - self._ended_at_seconds > _CALM_SECONDS:
            self._ends.reset()
        else:
            _log.warning(
                "the Kafka client ended again: does another process run with the same id? EVENKEEL_INSTANCE_ID is to "
                "be one process's own",
                client_id=self._config.client_id,
                error=repr(error),
            )
        self._ended_at_seconds = now_seconds
        await asyncio.sleep(self._ends.next_seconds())
        assert self._listener is not None
        await self.start(self._listener)

    def _started(self) -> AIOKafkaConsumer:
        assert self._client is not None, "start() comes first"
        return self._client
