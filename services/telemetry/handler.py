"""What the telemetry service does with a batch of records: joins, watches, sums up, and sends observations.

State per job lives in memory. What is committed is the oldest offset that an open frame or an unwritten rollup still
needs, so a restart reads those records again; what was said already is read back from the observations themselves.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from evenkeel.contracts.frames import Frames
from evenkeel.contracts.topics import BATCHES
from evenkeel.services.common.kafka import Batch, OutgoingRecord, Partition, Rejection
from evenkeel.services.common.kafka.ports import Producer
from evenkeel.services.common.worker import Worker
from evenkeel.services.telemetry.adapters.batch_reader import ArrivedJob, read_fetch
from evenkeel.services.telemetry.adapters.job_keys import JobKeys
from evenkeel.services.telemetry.adapters.observation_writer import observation_records
from evenkeel.services.telemetry.adapters.recovery import remember
from evenkeel.services.telemetry.adapters.rollup_writer import RollupWriter
from evenkeel.services.telemetry.adapters.tail import Tail
from evenkeel.services.telemetry.domain.observed import Picture
from evenkeel.services.telemetry.domain.rollups import FinishedWindow
from evenkeel.services.telemetry.job_runner import JobRunner, Told
from evenkeel.services.telemetry.metrics import TelemetryMetrics
from evenkeel.services.telemetry.shard import Shard

# A restart makes an unwritten rollup again if it begins within so many newest records of its partition: what is read
# again is a second of work, however many ranks tell of however long iterations.
ROLLUP_HOLD_RECORDS = 50_000
_HOUSEKEEPING_SECONDS = 5.0
_log = structlog.get_logger(__name__)

NothingMoreSince = Callable[[Partition, int], float | None]
StartOffsets = Callable[[Collection[Partition]], Awaitable[Mapping[Partition, int]]]


@dataclass(slots=True)
class _Outgoing:
    """What a step of work leads to, until the loop's thread sends and writes it."""

    records: list[OutgoingRecord] = field(default_factory=list)
    frames: list[Frames] = field(default_factory=list)
    windows: list[FinishedWindow] = field(default_factory=list)


class TelemetryHandler:
    """The handler of the records' topic; see :class:`evenkeel.services.common.kafka.Handler`."""

    def __init__(
        self,
        producer: Producer,
        tail: Tail,
        start_offsets: StartOffsets,
        nothing_more_since: NothingMoreSince,
        rollup_writer: RollupWriter,
        job_keys: JobKeys,
        metrics: TelemetryMetrics,
        *,
        worker: Worker,
        rollup_iterations: int,
        job_idle_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            producer: Sends the observations.
            tail: Reads back what was said.
            start_offsets: Where reading of input partitions starts.
            nothing_more_since: How many seconds ago the broker said that a partition has nothing from an offset on;
                None if it has.
            rollup_writer: Takes the rollups.
            job_keys: Says which records are believed, and whose end.
            metrics: Counts.
            worker: Does all that takes the CPU longer than a moment.
            rollup_iterations: Length of a rollup's window.
            job_idle_seconds: When a silent job is forgotten.
            clock: Unix seconds.
        """
        self._producer = producer
        self._tail = tail
        self._start_offsets = start_offsets
        self._nothing_more_since = nothing_more_since
        self._rollup_writer = rollup_writer
        self._job_keys = job_keys
        self._metrics = metrics
        self._worker = worker
        self._rollup_iterations = rollup_iterations
        self._job_idle_seconds = job_idle_seconds
        self._clock = clock
        self._shards: dict[int, Shard] = {}
        self._housekept_at_seconds = 0.0

    async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Reads back what was said in these partitions."""
        starts = await self._start_offsets(partitions)
        memories = await remember(self._tail, {each.number: offset for each, offset in starts.items()})
        for number, memory in memories.items():
            newest_offset = starts[Partition(BATCHES.name, number)] - 1
            self._shards[number] = Shard(memory, newest_offset, window_iterations=self._rollup_iterations)
        _log.info("goes on", jobs=sum(len(memory.jobs) for memory in memories.values()))
        return starts

    async def handle(self, batch: Batch[object]) -> Sequence[Rejection]:
        """Takes in records; returns when Kafka has acknowledged what follows from them."""
        await self._job_keys.learn({record.key or b"" for record in batch.records})
        arrived, rejections = await self._worker.run(read_fetch, batch.records, self._job_keys.believed)
        strangers = await self._job_keys.strangers(arrived)
        if strangers:
            rejections += strangers
            refused = {each.record.offset for each in rejections}
            stays = [each for each in batch.records if each.offset not in refused]
            arrived, _ = await self._worker.run(read_fetch, stays, self._job_keys.believed)
        outgoing = _Outgoing()
        rejections += await self._worker.run(self._take_fetch, outgoing, batch, arrived)
        await self._send(outgoing)
        return rejections

    async def tick(self, now_seconds: float) -> None:
        """Closes what is overdue and takes pictures."""
        keep_house = now_seconds - self._housekept_at_seconds > _HOUSEKEEPING_SECONDS
        if keep_house:
            self._housekept_at_seconds = now_seconds
        untils: dict[int, float] = {}
        for number, shard in self._shards.items():
            since = self._nothing_more_since(Partition(BATCHES.name, number), shard.newest_offset + 1)
            if shard.jobs and since is not None:
                untils[number] = now_seconds - since
        await self._send(await self._worker.run(self._pass_time, untils, keep_house))

    async def checkpoint(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Nothing to write; what may be committed is what no open frame and no unwritten rollup needs."""
        allowed = {}
        for partition, position in positions.items():
            shard = self._shards.get(partition.number)
            if shard is None:
                continue
            of_rollups = self._rollup_writer.first_offsets(shard.jobs)
            of_rollups += [each for job in shard.jobs.values() for each in job.rollups.first_offsets]
            of_frames = [job.stream.frames.oldest_offset for job in shard.jobs.values()]
            needed = [each for each in of_rollups if each >= position - ROLLUP_HOLD_RECORDS]
            allowed[partition] = min([position, *needed, *(each for each in of_frames if each is not None)])
        return allowed

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Forgets partitions; the next owner reads again what was not committed."""
        for partition in partitions:
            self._shards.pop(partition.number, None)
        self._count_jobs()

    def _take_fetch(self, outgoing: _Outgoing, batch: Batch[object], arrived: Sequence[ArrivedJob]) -> list[Rejection]:
        """What a fetch brought, one step for each job; returns what is refused. The worker's thread."""
        shard, rejections = self._shards[batch.partition.number], []
        shard.newest_offset = batch.next_offset - 1
        appended_at_seconds = (record.timestamp_seconds for record in batch.records)
        shard.after(shard.clock.read(appended_at_seconds, batch.received_at_seconds))
        for each in arrived:
            rejections += self._take(outgoing, shard, each)
        self._count_jobs()
        return rejections

    def _pass_time(self, untils: Mapping[int, float], keep_house: bool) -> _Outgoing:
        """What the passing of time alone leads to. The worker's thread.

        Args:
            untils: Up to when there is nothing more in a partition, by its number, where that is known.
            keep_house: Whether it is time for that.
        """
        outgoing = _Outgoing()
        for number, shard in self._shards.items():
            until_seconds = untils.get(number)
            if until_seconds is not None:
                shard.after(shard.clock.nothing_more(until_seconds))
            for job in shard.jobs.values():
                self._note(outgoing, shard, job, job.tick(shard.clock.now_seconds))
        if keep_house:
            self._keep_house(outgoing)
        return outgoing

    def _take(self, outgoing: _Outgoing, shard: Shard, arrived: ArrivedJob) -> list[Rejection]:
        """What one job brought; if its rules trip over it, record by record; what they still trip over is buried."""
        job, now_seconds = shard.job(arrived.job_id), shard.clock.now_seconds
        first_seconds = arrived.records[0].timestamp_seconds
        for _ in range(2):
            told = job.take(arrived.arrived, now_seconds, first_seconds)
            self._note(outgoing, shard, job, told)
            if told.error is None:
                return []
            if len(arrived.records) > 1:
                alone = [read_fetch([record], self._job_keys.believed)[0] for record in arrived.records]
                return [rejection for [each] in alone for rejection in self._take(outgoing, shard, each)]
        reason = f"its job failed on it: {told.error!r}"
        return [Rejection(record=record, error="job_failed", reason=reason) for record in arrived.records]

    def _note(self, outgoing: _Outgoing, shard: Shard, job: JobRunner, told: Told) -> None:
        """Puts what a job has to tell to what others have."""
        if told.error is not None:
            self._metrics.failures.inc()
            job.stream.wait_for_all(shard.all_back_at_seconds)
        self._metrics.lost_records.inc(told.num_lost)
        self._metrics.dropped_by_ranks.inc(told.num_dropped)
        outgoing.windows += told.windows
        if not told.numbered:
            return
        outgoing.records += observation_records(job.stream.job_id, told.numbered, input_offset=shard.newest_offset)
        for _, observed in told.numbered:
            if isinstance(observed, Frames):
                outgoing.frames.append(observed)
                self._metrics.observations.labels("frame").inc(len(observed))
            else:
                self._metrics.observations.labels("picture" if isinstance(observed, Picture) else "event").inc()

    async def _send(self, outgoing: _Outgoing) -> None:
        self._rollup_writer.put(outgoing.windows)
        if not outgoing.records:
            return
        await self._producer.send_all(outgoing.records)
        now_seconds = self._clock()
        for frames in outgoing.frames:
            missing = (~frames.present).sum(axis=1)
            num_complete = int((missing == 0).sum())
            self._metrics.frames.labels("yes").inc(num_complete)
            self._metrics.frames.labels("no").inc(len(frames) - num_complete)
            self._metrics.missing_entries.inc(int(missing.sum()))
        for heard_at_seconds in {float(frames.last_heard_at_unix_seconds[-1]) for frames in outgoing.frames}:
            self._metrics.frame_seconds.observe(max(0.0, now_seconds - heard_at_seconds))

    def _keep_house(self, outgoing: _Outgoing) -> None:
        """Forgets jobs that are over, ends idle windows, exports counts, tells of ranks that are behind."""
        num_behind = 0
        for shard in self._shards.values():
            now_seconds = shard.clock.now_seconds
            for job_id, job in list(shard.jobs.items()):
                num_behind += job.tell_of_laggards(now_seconds)
                for outcome, count in job.outcomes().items():
                    self._metrics.samples.labels(outcome).inc(count)
                is_over = job.stream.is_over(now_seconds, idle_seconds=self._job_idle_seconds)
                # While ranks come back after a cut, one that is silent may only not be back yet.
                if is_over or now_seconds >= shard.all_back_at_seconds:
                    self._note(outgoing, shard, job, job.finish_windows(now_seconds, is_over=is_over))
                if is_over:
                    shard.forget(job_id)
        self._metrics.ranks_behind.set(num_behind)
        self._count_jobs()

    def _count_jobs(self) -> None:
        self._metrics.jobs.set(sum(len(shard.jobs) for shard in self._shards.values()))
