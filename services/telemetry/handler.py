"""What the telemetry service does with a batch of records: joins, watches, sums up, and sends observations.

State per job lives in memory. What is committed is the oldest offset that an open frame or an unwritten rollup still
needs, so a restart reads those records again; what was said already is read back from the observations themselves.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog

from evenkeel.services.common.kafka import Batch, ConsumedRecord, OutgoingRecord, Partition, Rejection
from evenkeel.services.common.kafka.ports import Producer
from evenkeel.services.common.kafka.tail import Tail
from evenkeel.services.telemetry.adapters.observation_codec import observation_records
from evenkeel.services.telemetry.adapters.record_batch import ArrivedRun, RecordBatchDecoder
from evenkeel.services.telemetry.adapters.recovery import PartitionMemory, remember
from evenkeel.services.telemetry.adapters.rollup_writer import RollupWriter
from evenkeel.services.telemetry.domain.frames import Outcome
from evenkeel.services.telemetry.domain.job_stream import RETURN_SECONDS, JobStream
from evenkeel.services.telemetry.domain.observed import ArrivedEvent, ClosedFrame, EventKind, Numbered, Picture
from evenkeel.services.telemetry.domain.rollups import RollupAggregator, RollupHold
from evenkeel.services.telemetry.domain.sample_block import SampleBlock
from evenkeel.services.telemetry.domain.sequences import RecordSequences
from evenkeel.services.telemetry.metrics import TelemetryMetrics

# A restart makes an unwritten rollup again if it is not older than this, or begins within so many newest records of its
# partition. That bounds what is read again: 30 s of many ranks, or a second or two of work for windows of slow jobs.
ROLLUP_HOLD_SECONDS = 30.0
ROLLUP_HOLD_RECORDS = 50_000
_HOUSEKEEPING_SECONDS = 5.0
_ENDS = frozenset((EventKind.DIED, EventKind.FINISHED))

_log = structlog.get_logger(__name__)

StartOffset = Callable[[Partition], Awaitable[int]]


@dataclass(slots=True)
class _Job:
    stream: JobStream
    rollups: RollupAggregator
    sequences: RecordSequences
    counted: dict[Outcome, int] = field(default_factory=dict)
    new_rows: list[range] = field(default_factory=list)


@dataclass(slots=True)
class _Told:
    """What a job has to tell: records for Kafka, and the frames among them."""

    records: list[OutgoingRecord] = field(default_factory=list)
    frames: list[ClosedFrame] = field(default_factory=list)


@dataclass(slots=True)
class _Shard:
    """Everything of one input partition."""

    number: int
    memory: PartitionMemory
    jobs: dict[str, _Job] = field(default_factory=dict)
    newest_offset: int = -1


class TelemetryHandler:
    """The handler of the records' topic; see :class:`evenkeel.services.common.kafka.Handler`."""

    def __init__(
        self,
        producer: Producer,
        tail: Tail,
        start_offset: StartOffset,
        rollup_writer: RollupWriter,
        metrics: TelemetryMetrics,
        *,
        rollup_iterations: int,
        job_idle_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            producer: Sends the observations.
            tail: Reads back what was said.
            start_offset: Where reading of an input partition starts.
            rollup_writer: Takes the rollups.
            metrics: Counts.
            rollup_iterations: Length of a rollup's window.
            job_idle_seconds: When a silent job is forgotten.
            clock: Unix seconds.
        """
        self._producer = producer
        self._tail = tail
        self._start_offset = start_offset
        self._rollup_writer = rollup_writer
        self._metrics = metrics
        self._rollup_iterations = rollup_iterations
        self._job_idle_seconds = job_idle_seconds
        self._clock = clock
        self._decoder = RecordBatchDecoder()
        self._shards: dict[int, _Shard] = {}
        self._housekept_at_seconds = 0.0
        self._deaf = False
        self._all_back_at_seconds = 0.0

    def kafka_changed(self, reachable: bool) -> None:
        """While Kafka is away nothing can be heard: no clock runs against any rank."""
        if self._deaf and reachable:
            self._excuse_silence(self._clock())
        self._deaf = not reachable

    def _excuse_silence(self, now_seconds: float) -> None:
        self._all_back_at_seconds = now_seconds + RETURN_SECONDS
        for shard in self._shards.values():
            for job in shard.jobs.values():
                job.stream.excuse_silence(now_seconds)
                job.stream.wait_for_all(self._all_back_at_seconds)

    async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Reads back what was said in partitions that are new here; those that stayed go on where they were."""
        starts = {}
        for partition in partitions:
            start = await self._start_offset(partition)
            memory = await remember(self._tail, partition.number, from_offset=start)
            self._shards[partition.number] = _Shard(number=partition.number, memory=memory)
            starts[partition] = start
            if memory.jobs:
                _log.info(
                    "goes on",
                    partition=partition.number,
                    jobs=len(memory.jobs),
                    from_offset=start,
                    said_until_offset=memory.until_offset,
                )
        return starts

    async def handle(self, batch: Batch[object]) -> Sequence[Rejection]:
        """Takes in records; returns when Kafka has acknowledged what follows from them."""
        shard = self._shards[batch.partition.number]
        now_seconds = batch.received_at_seconds
        if self._deaf:  # the first records come before anybody has noticed that Kafka is back
            self._excuse_silence(now_seconds)
        arrived = self._decoder.decode(batch.records)
        outgoing: list[OutgoingRecord] = []
        frames: list[ClosedFrame] = []
        rejections = arrived.rejections
        for run in arrived.runs:
            shard.newest_offset = run.newest_offset
            taken, error = self._take_guarded(shard, run, arrived.block, now_seconds)
            outgoing += taken.records
            frames += taken.frames
            if error is not None:
                refused = {rejection.record.offset for rejection in rejections}
                rejections += [one for one in _set_aside(batch.records, run, error) if one.record.offset not in refused]
        for job_id, job in list(shard.jobs.items()):
            try:
                self._sum_up(job, arrived.block, now_seconds)
            except Exception as error:
                self._begin_anew(shard, job_id, error, now_seconds)
        shard.newest_offset = batch.next_offset - 1
        await self._send(outgoing, frames)
        self._excuse(self._clock() - batch.received_at_seconds)
        return rejections

    async def tick(self, now_seconds: float) -> None:
        """Closes what is overdue and takes pictures."""
        if self._deaf:
            return
        outgoing: list[OutgoingRecord] = []
        frames: list[ClosedFrame] = []
        for shard in self._shards.values():
            for job_id, job in list(shard.jobs.items()):
                try:
                    told = self._told(shard, job, job.stream.tick(now_seconds))
                except Exception as error:
                    self._begin_anew(shard, job_id, error, now_seconds)
                    continue
                outgoing += told.records
                frames += told.frames
        await self._send(outgoing, frames)
        if now_seconds - self._housekept_at_seconds > _HOUSEKEEPING_SECONDS:
            self._housekept_at_seconds = now_seconds
            self._keep_house(now_seconds)

    async def checkpoint(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Nothing to write; what may be committed is what no open frame and no unwritten rollup needs."""
        since_seconds = self._clock() - ROLLUP_HOLD_SECONDS
        allowed = {}
        for partition, position in positions.items():
            shard = self._shards.get(partition.number)
            if shard is None:
                continue
            hold = RollupHold(opened_after_seconds=since_seconds, from_offset=position - ROLLUP_HOLD_RECORDS)
            offsets = [position, self._rollup_writer.oldest_offset(shard.jobs, hold)]
            for job in shard.jobs.values():
                offsets.append(job.stream.frames.oldest_offset)
                offsets.append(job.rollups.oldest_offset(hold))
            allowed[partition] = min(offset for offset in offsets if offset is not None)
        return allowed

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Forgets partitions; the next owner reads again what was not committed."""
        for partition in partitions:
            self._shards.pop(partition.number, None)
        self._count_jobs()

    def _job(self, shard: _Shard, job_id: str, now_seconds: float) -> _Job:
        job = shard.jobs.get(job_id)
        if job is not None:
            return job
        said = shard.memory.jobs.pop(job_id, None)
        # Not in what was read back, and that was not all: the numbers only have to go on growing.
        first_sequence = 0 if shard.memory.complete else round(now_seconds * 1000)
        job = _Job(
            stream=JobStream(job_id, first_sequence=first_sequence),
            rollups=RollupAggregator(job_id, window_iterations=self._rollup_iterations),
            sequences=RecordSequences(),
        )
        if said is not None:
            job.stream.resume(
                next_sequence=said.next_sequence,
                last_frame=said.last_frame,
                events=said.events,
                until_offset=shard.memory.until_offset,
                now_seconds=now_seconds,
            )
        job.stream.wait_for_all(self._all_back_at_seconds)
        shard.jobs[job_id] = job
        self._count_jobs()
        return job

    def _take_guarded(
        self, shard: _Shard, run: ArrivedRun, block: SampleBlock, now_seconds: float
    ) -> tuple[_Told, Exception | None]:
        """What a job has to tell of a run; one that fails begins anew and gets it once more, and then goes without."""
        error: Exception | None = None
        for _ in range(2):
            job = self._job(shard, run.job_id, now_seconds)
            try:
                return self._told(shard, job, self._take(job, run, block, now_seconds)), None
            except Exception as raised:
                error = raised
                self._begin_anew(shard, run.job_id, raised, now_seconds, untold=run.events)
        return _Told(), error

    def _begin_anew(
        self,
        shard: _Shard,
        job_id: str,
        error: Exception,
        now_seconds: float,
        untold: Sequence[ArrivedEvent] = (),
    ) -> None:
        """What one job trips over, by a mistake of ours, would be read again after a restart, and end all others."""
        self._metrics.failures.inc()
        _log.error(
            "joining a job's samples failed and begins anew; the job trains on, others are not concerned",
            job_id=job_id,
            what_to_do="report it with this traceback; frames are complete again within some iterations",
            exc_info=error,
        )
        known = shard.jobs[job_id]
        job = _Job(
            stream=known.stream.begun_anew(untold, now_seconds),
            rollups=RollupAggregator(job_id, window_iterations=self._rollup_iterations),
            sequences=RecordSequences(),
        )
        job.stream.wait_for_all(self._all_back_at_seconds)
        shard.jobs[job_id] = job

    def _take(self, job: _Job, run: ArrivedRun, block: SampleBlock, now_seconds: float) -> list[Numbered]:
        stream = job.stream
        gap, dropped = job.sequences.add(run.numbers)
        if gap:
            self._metrics.lost_records.inc(gap)
        if dropped:
            self._metrics.dropped_by_ranks.inc(dropped)
        numbered: list[Numbered] = []
        for event in run.events:
            numbered.extend(stream.event(event, now_seconds))
        numbered.extend(
            stream.records(
                run.numbers[:, 0:2], run.num_samples, run.progress, block, run.first_row, run.stop_row, now_seconds
            )
        )
        if run.stop_row > run.first_row:
            job.new_rows.append(range(run.first_row, run.stop_row))
        for event in run.events:
            if event.kind in _ENDS:
                self._sum_up(job, block, now_seconds)
                self._rollup_writer.put(job.rollups.finish_process(event.rank, event.incarnation))
        return numbered

    def _excuse(self, seconds: float) -> None:
        """So long this service worked instead of reading: what it has not read yet is nobody's delay."""
        for shard in self._shards.values():
            for job in shard.jobs.values():
                job.stream.frames.excuse(max(0.0, seconds))

    def _sum_up(self, job: _Job, block: SampleBlock, now_seconds: float) -> None:
        """Puts the job's newest samples, which were only noted so far, into its rollups."""
        if job.new_rows:
            rows = np.concatenate([np.arange(each.start, each.stop) for each in job.new_rows])
            job.new_rows.clear()
            self._rollup_writer.put(job.rollups.add(block, rows, now_seconds))

    def _told(self, shard: _Shard, job: _Job, numbered: Sequence[Numbered]) -> _Told:
        if not numbered:
            return _Told()
        told = _Told(observation_records(job.stream.job_id, numbered, input_offset=shard.newest_offset))
        for each in numbered:
            if isinstance(each.observed, ClosedFrame):
                told.frames.append(each.observed)
            else:
                kind = "picture" if isinstance(each.observed, Picture) else "event"
                self._metrics.observations.labels(kind).inc()
        if told.frames:
            self._metrics.observations.labels("frame").inc(len(told.frames))
        return told

    async def _send(self, outgoing: Sequence[OutgoingRecord], frames: Sequence[ClosedFrame]) -> None:
        if not outgoing:
            return
        await self._producer.send_all(outgoing)
        now_seconds = self._clock()
        num_missing = [len(frame.missing_ranks) for frame in frames if frame.missing_ranks]
        for complete, count in (("no", len(num_missing)), ("yes", len(frames) - len(num_missing))):
            if count:
                self._metrics.frames.labels(complete).inc(count)
        self._metrics.missing_entries.inc(sum(num_missing))
        for arrived_at_seconds in {frame.last_sample_at_seconds for frame in frames}:
            self._metrics.frame_seconds.observe(max(0.0, now_seconds - arrived_at_seconds))

    def _keep_house(self, now_seconds: float) -> None:
        """Forgets idle jobs, ends idle windows, exports counts, tells of ranks that are behind."""
        self._tell_of_laggards(now_seconds)
        for shard in self._shards.values():
            for job_id, job in list(shard.jobs.items()):
                for outcome, total in job.stream.frames.outcomes.items():
                    self._metrics.samples.labels(outcome).inc(total - job.counted.get(outcome, 0))
                    job.counted[outcome] = total
                is_over = now_seconds - job.stream.heard_at_seconds > self._job_idle_seconds
                try:
                    if now_seconds >= self._all_back_at_seconds:  # else its rank may only not be back yet
                        self._rollup_writer.put(job.rollups.finish_idle(now_seconds))
                    if is_over:
                        self._rollup_writer.put(job.rollups.finish_all())
                except Exception as error:
                    self._begin_anew(shard, job_id, error, now_seconds)
                if is_over:
                    del shard.jobs[job_id]
                    shard.memory.complete = False
        self._count_jobs()

    def _tell_of_laggards(self, now_seconds: float) -> None:
        num_behind = 0
        for job in (job for shard in self._shards.values() for job in shard.jobs.values()):
            laggards = job.stream.frames.laggards
            num_behind += len(laggards.behind(now_seconds))
            fallen, back = laggards.news(now_seconds)
            for one in fallen:
                _log.warning(
                    "a rank is behind its peers: its samples are in the rollups and in no frame until it has caught up",
                    job_id=job.stream.job_id,
                    rank=one.rank,
                    incarnation=one.incarnation,
                    iteration=one.iteration,
                    peers_at_iteration=one.behind_iteration,
                    what_to_do="give run.iteration(index=...) the number that its peers are at, or start all again",
                )
            for one in back:
                _log.info("a rank has caught up", job_id=job.stream.job_id, rank=one.rank, late_samples=one.num_samples)
        self._metrics.ranks_behind.set(num_behind)

    def _count_jobs(self) -> None:
        self._metrics.jobs.set(sum(len(shard.jobs) for shard in self._shards.values()))


def _set_aside(records: Sequence[ConsumedRecord], run: ArrivedRun, error: Exception) -> list[Rejection]:
    """The records of a run, and those of its job between them that were refused before."""
    first, last, key = run.first_offset, run.newest_offset, run.job_id.encode()
    return [
        Rejection(record=record, error="job_failed", reason=f"its job failed on it: {error!r}")
        for record in records
        if first <= record.offset <= last and record.key == key
    ]
