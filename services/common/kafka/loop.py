"""The consume loop: poll, decode, handle, checkpoint; poison aside; rebalances in order.

Model: one task polls and handles; the client calls ``assigned`` and ``revoked`` from its own task, which waits until
the batches in hand are finished. A turn takes a batch of each partition that has records, side by side: each gets its
part of what a turn may take, and what is left of a noisy one waits without keeping the others from being read.
Delivery is at least once: after a crash a handler sees again what it had not allowed to be committed, so its effects
must be idempotent.

Decoding runs on a worker thread, as the work of a handler does, so that the client's heartbeats and the service's
answers go on beside it; and a turn takes as much as a fraction of a second of CPU time allows. A starved service
takes as large bites as any other, up to some seconds, for small ones cost most; it keeps its place in the group.

Not covered: work on several cores (run more instances), retries of single records (a handler waits and tries
again itself while something that it needs is away: that holds the stream, which is what we want).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, TypeVar

import structlog

from evenkeel.services.common.kafka.checkpoint import Checkpoint
from evenkeel.services.common.kafka.dead_letters import DeadLetters
from evenkeel.services.common.kafka.pace import SECONDS_A_CPU_SECOND, BatchPace, LoopConfig
from evenkeel.services.common.kafka.ports import Consumer, Decoder, Handler
from evenkeel.services.common.kafka.records import (
    Batch,
    ConsumedRecord,
    Message,
    Partition,
    RejectedRecordError,
    Rejection,
)
from evenkeel.services.common.metrics import KafkaMetrics
from evenkeel.services.common.worker import Worker

M = TypeVar("M")

_log = structlog.get_logger(__name__)


class ConsumerStalledError(RuntimeError):
    """The client has unread records and delivers none: only a restart helps."""


class ConsumeLoop(Generic[M]):
    """Feeds a handler from a consumer until it is cancelled."""

    def __init__(
        self,
        consumer: Consumer,
        handler: Handler[M],
        *,
        decoders: Mapping[str, Decoder[M] | None],
        dead_letters: DeadLetters,
        metrics: KafkaMetrics,
        worker: Worker,
        config: LoopConfig | None = None,
        on_assigned: Callable[[Collection[Partition]], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            consumer: Not started yet.
            handler: What to do with the records.
            decoders: One per consumed topic; None where the handler decodes whole batches itself.
            dead_letters: Where poison goes.
            metrics: Counts.
            worker: Decodes; the handler's own work is to run on it too.
            config: Limits.
            on_assigned: Told which partitions are ours after each rebalance, for example to report health.
            clock: Unix seconds.
        """
        self._consumer = consumer
        self._handler = handler
        self._decoders = decoders
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._worker = worker
        limits = self._config = config or LoopConfig()
        self._on_assigned = on_assigned
        self._clock = clock
        every, most = limits.checkpoint_seconds, limits.checkpoint_records
        self._checkpoint = Checkpoint(interval_seconds=every, max_records=most)
        self._pace = BatchPace(most=limits.max_records)
        # Fetched and not yet taken, in the order of fetching.
        self._waiting: dict[Partition, Sequence[ConsumedRecord]] = {}
        # With whose records the last poll was full: a client gives one partition's before it comes to another's.
        self._filled: set[Partition] = set()
        self._loading: asyncio.Task[None] | None = None
        self._generation = 0
        # Guards handler and checkpoint between the loop's task and the client's rebalance task.
        self._lock = asyncio.Lock()
        self._last_delivery_seconds = 0.0
        self._stopping = False

    async def run(self) -> None:
        """Runs until cancelled; then takes a last checkpoint and leaves the group.

        Raises:
            ConsumerStalledError: The client is broken.
            Exception: Whatever the handler raised.
        """
        try:
            await self._consumer.start(self)
            # A batch is never torn: a cancelled handler could leave a state that is ahead of its offsets.
            turns = asyncio.create_task(self._turns())
            try:
                await asyncio.shield(turns)
            except asyncio.CancelledError:
                await self._finish(turns)
                raise
        finally:
            await self._end_load()
            await self._consumer.stop()
            self._worker.stop()

    async def assigned(self, partitions: Collection[Partition]) -> None:
        """The client's call: only begun, for the client sends no heartbeat before it is back; turns wait for it."""
        await self._end_load()
        self._generation += 1
        self._metrics.rebalances.inc()
        if not self._stopping:
            self._loading = asyncio.create_task(self._load(partitions))

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """The client's call: finish what is in hand, make it durable, commit, forget. What still loads nobody needs."""
        await self._end_load()
        async with self._lock:
            self._generation += 1
            await self._last_commit()
            await self._handler.revoked(partitions)
            self._checkpoint.drop(partitions)

    async def _turns(self) -> None:
        self._last_delivery_seconds = self._clock()
        watch = asyncio.create_task(self._watch_lag())
        try:
            while not self._stopping and not watch.done():
                await self._turn()
            if watch.done():
                watch.result()
        finally:
            watch.cancel()
            await asyncio.gather(watch, self._end_load(), return_exceptions=True)

    async def _finish(self, turns: asyncio.Task[None]) -> None:
        """Lets the batch in hand end and commits; without a commit if something that it needs is away."""
        self._stopping = True
        done, _ = await asyncio.wait([turns], timeout=self._config.revoke_timeout_seconds)
        if done and turns.exception() is None:
            async with self._lock:
                await self._last_commit()
        else:
            turns.cancel()
            await asyncio.gather(turns, return_exceptions=True)
            _log.warning("stopped in the middle of a batch; a restart reads it again")

    async def _load(self, partitions: Collection[Partition]) -> None:
        """State of the partitions that were assigned, and where each starts."""
        async with self._lock:
            self._waiting.clear()
            starts = await self._handler.assigned(partitions)
            unsaid = [each for each in partitions if each not in starts]
            starts = {**starts, **(await self._consumer.start_offsets(unsaid) if unsaid else {})}
            for partition, start in starts.items():
                self._consumer.seek(partition, start)
            self._checkpoint.begin(starts)
            self._pace = BatchPace(most=self._config.max_records)
        _log.info("partitions assigned", partitions=[f"{each.topic}/{each.number}" for each in partitions])
        if self._on_assigned:
            self._on_assigned(partitions)
        self._loading = None

    async def _end_load(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
            self._loading = None

    async def _turn(self) -> None:
        while (loading := self._loading) is not None:
            await asyncio.wait([loading])
            if not loading.cancelled():
                loading.result()
        generation = self._generation
        without = self._waiting.keys() | self._filled
        fetched = await self._consumer.poll(
            timeout_seconds=0.0 if without else self._config.tick_seconds,
            max_records=self._pace.max_records,
            without=without,
        )
        is_full = sum(map(len, fetched.values())) >= self._pace.max_records
        self._filled = set(fetched) if is_full else set()
        async with self._lock:
            if generation == self._generation:
                self._waiting.update({partition: records for partition, records in fetched.items() if records})
                await self._take_what_waits()
            else:  # fetched before a rebalance moved us: the right places are where we said
                for partition in fetched.keys() & self._checkpoint.positions.keys():
                    self._consumer.seek(partition, self._checkpoint.positions[partition])
            now_seconds = self._clock()
            await self._handler.tick(now_seconds)
            if self._checkpoint.due(now_seconds):
                await self._commit()

    async def _take_what_waits(self) -> None:
        """A batch of each partition, all together as much as a turn may take; the rest goes to the end of the queue."""
        began_seconds, began_cpu_seconds = time.monotonic(), time.process_time()
        room, batches = self._pace.max_records, {}
        for num_before, (partition, records) in enumerate(list(self._waiting.items())):
            num_taken = min(len(records), max(1, room // (len(self._waiting) - num_before)), room)
            batches[partition], room = records[:num_taken], room - num_taken
        for partition, taken in batches.items():
            rest = self._waiting.pop(partition)[len(taken) :]
            if len(rest):
                self._waiting[partition] = rest
        takes = [self._take(partition, taken) for partition, taken in batches.items() if len(taken)]
        for outcome in await asyncio.gather(*takes, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        seconds, cpu_seconds = time.monotonic() - began_seconds, time.process_time() - began_cpu_seconds
        self._pace.took(self._pace.max_records - room, max(cpu_seconds, seconds / SECONDS_A_CPU_SECOND))

    async def _take(self, partition: Partition, records: Sequence[ConsumedRecord]) -> None:
        expected = self._checkpoint.positions.get(partition)
        records = [each for each in records if expected is not None and each.offset >= expected]
        if not records:
            return
        now_seconds = self._last_delivery_seconds = self._clock()
        topic = partition.topic
        self._metrics.record_age_seconds.labels(topic).observe(max(0.0, now_seconds - records[-1].timestamp_seconds))
        with self._metrics.handle_seconds.labels(topic).time():
            decode = self._decoders[topic]
            messages, rejections = ([], []) if decode is None else await self._worker.run(_decode_each, decode, records)
            batch = Batch(
                partition=partition,
                records=records,
                messages=messages,
                next_offset=records[-1].offset + 1,
                received_at_seconds=now_seconds,
            )
            more = await self._handler.handle(batch)
            await self._dead_letters.bury([*rejections, *more])
        num_rejected = len(rejections) + len(more)
        self._metrics.records.labels(topic, "rejected").inc(num_rejected)
        self._metrics.records.labels(topic, "handled").inc(len(records) - num_rejected)
        self._checkpoint.handled(partition, batch.next_offset, num_records=len(records), now_seconds=self._clock())

    async def _commit(self) -> None:
        """Snapshot, then offsets; a failed commit is tried again later."""
        allowed = await self._handler.checkpoint(dict(self._checkpoint.positions))
        offsets = self._checkpoint.to_commit(allowed)
        if await self._consumer.commit(offsets):
            self._checkpoint.committed(offsets, self._clock())
        else:
            self._metrics.commit_failures.inc()
            self._checkpoint.postpone(self._clock())

    async def _last_commit(self) -> None:
        try:
            async with asyncio.timeout(self._config.revoke_timeout_seconds):
                await self._commit()
        except TimeoutError:
            _log.warning("no time for the last commit; who goes on reads a little again")

    async def _watch_lag(self) -> None:
        """Exports the lag, notices a Kafka that is away, and ends when the client delivers nothing that is there."""
        while True:
            await asyncio.sleep(self._config.lag_seconds)
            try:
                unread = await self._consumer.unread()
            except OSError:
                self._metrics.unreachable.set(1)
                self._last_delivery_seconds = self._clock()
                continue
            self._metrics.unreachable.set(0)
            for partition, count in unread.items():
                waiting = len(self._waiting.get(partition, ()))
                self._metrics.lag_records.labels(partition.topic, partition.number).set(count + waiting)
            idle_seconds = self._clock() - self._last_delivery_seconds
            if not any(unread.values()) or self._lock.locked():
                self._last_delivery_seconds = self._clock()
            elif idle_seconds > self._config.stall_seconds:
                raise ConsumerStalledError(f"unread records and none delivered for {idle_seconds:.0f} s")


def _decode_each(decode: Decoder[M], records: Sequence[ConsumedRecord]) -> tuple[list[Message[M]], list[Rejection]]:
    messages: list[Message[M]] = []
    rejections: list[Rejection] = []
    for record in records:
        try:
            messages.append(Message(content=decode(record), record=record))
        except ValueError as error:
            word = error.error if isinstance(error, RejectedRecordError) else type(error).__name__
            rejections.append(Rejection(record=record, error=word, reason=str(error)))
    return messages, rejections
