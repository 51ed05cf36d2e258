"""Feeds observations to the jobs' detectors, publishes what they find, and keeps snapshots.

Findings are acknowledged by Kafka before the offset behind them can be committed. A job's state is saved every few
seconds with the offset it covers; nothing is committed beyond the first observation that some job's snapshot lacks. So
a restart reads again what it must, and jobs whose snapshot is newer ignore what they know already. A database that is
away or slow delays commits and never verdicts: what is saved is taken between two batches and written beside them.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import structlog

from evenkeel.history.stream_records import SnapshotRecord
from evenkeel.services.common.kafka import Batch, Partition, Rejection
from evenkeel.services.common.kafka.ports import Producer
from evenkeel.services.common.kafka.records import Message
from evenkeel.services.common.worker import Worker
from evenkeel.services.detector.adapters.fetched import by_job, is_picture, observe
from evenkeel.services.detector.adapters.guarded_detector import GuardedDetector
from evenkeel.services.detector.adapters.observation_codec import Arrived
from evenkeel.services.detector.adapters.snapshot_store import SnapshotStore
from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.job.job import Finding
from evenkeel.services.detector.metrics import DetectorMetrics

_RETRY_SECONDS = 2.0
# A healthy database is done by then, and the offsets go with this very commit.
_SAVE_WAIT_SECONDS = 0.2
_MOST_SAVED_TOGETHER = 50
"""Jobs in one transaction. All that a large fleet has would not be written in time, and never, as they become more."""
_FORGET_SECONDS = 86_400.0
FORGET_FINISHED_SECONDS = 120.0
"""A job all of whose processes ended is kept so long: its last frame may come that late and must not begin it anew."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class _Watched:
    """One job's detector and how far it got."""

    detector: GuardedDetector
    next_offset: int
    first_unsaved: int | None = None
    saving_from: int | None = None
    save_due_seconds: float
    last_seen_seconds: float


class DetectorHandler:
    """The consume loop's handler for observations; see :class:`evenkeel.services.common.kafka.Handler`.

    Args:
        producer: Publishes findings.
        store: Keeps snapshots.
        metrics: Counts.
        worker: Observes.
        iterations_per_false_alarm: Budget of each job.
        snapshot_seconds: Time between two snapshots of a job.
    """

    def __init__(
        self,
        producer: Producer,
        store: SnapshotStore,
        metrics: DetectorMetrics,
        worker: Worker,
        *,
        iterations_per_false_alarm: float,
        snapshot_seconds: float,
    ) -> None:
        self._producer = producer
        self._store = store
        self._metrics = metrics
        self._worker = worker
        self._iterations_per_false_alarm = iterations_per_false_alarm
        self._snapshot_seconds = snapshot_seconds
        self._jobs: dict[Partition, dict[str, _Watched]] = {}
        self._retry_at_seconds = 0.0
        self._saving: asyncio.Task[None] | None = None

    async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Loads the snapshots of the jobs in these partitions; reading starts at the committed offsets."""
        await self._end_save()
        snapshots = await self._store.load(partitions)
        self._jobs = {partition: {} for partition in partitions}
        for one in snapshots:
            of_partition = self._jobs[Partition(one.topic, one.partition)]
            of_partition[one.job_id] = self._begin(one.job_id, one.next_offset, one.state)
        self._count_jobs()
        return {}

    async def handle(self, batch: Batch[Arrived]) -> Sequence[Rejection]:
        """Observes a batch and publishes what was found; returns when Kafka has it.

        What a job's detector fails at concerns no other job, see :class:`GuardedDetector`.
        """
        of_jobs = by_job(batch.messages)
        # A snapshot may be written beside the work: what it lacks is noted before, and on the loop's thread alone.
        watched = [self._begin_batch(batch, job_id, messages) for job_id, messages in of_jobs.items()]
        observed = await self._worker.run(observe, [each.detector for each in watched], list(of_jobs.values()))
        for each, messages, has_found in zip(watched, of_jobs.values(), observed.has_found, strict=True):
            each.next_offset = max(each.next_offset, messages[-1].record.offset + 1)
            if has_found:
                _note_news(each, batch, messages)
            elif not each.detector.finished():
                each.last_seen_seconds = batch.received_at_seconds
        if observed.outgoing:
            await self._producer.send_all(observed.outgoing)
        for finding in observed.findings:
            self._count(finding)
        self._metrics.rank_samples.inc(observed.num_samples)
        published_at = time.time()
        for message in batch.messages:
            self._metrics.lag_seconds.observe(max(published_at - message.content.newest_at_seconds, 0.0))
        return observed.rejections

    def _begin_batch(self, batch: Batch[Arrived], job_id: str, messages: Sequence[Message[Arrived]]) -> _Watched:
        jobs, first = self._jobs[batch.partition], messages[0].record.offset
        watched = jobs.get(job_id)
        if watched is None:
            jobs[job_id] = watched = self._begin(job_id, first)
            self._metrics.jobs.inc()
        # A picture says again what it says until that changes: unless it leads to something, it is worth no snapshot,
        # and those of a job that has ended do not keep it.
        is_news = not all(is_picture(each) for message in messages for each in message.content.observations)
        if is_news:
            _note_news(watched, batch, messages)
        return watched

    async def tick(self, now_seconds: float) -> None:
        """Nothing depends on the clock: what is found depends on the observations alone."""

    async def checkpoint(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Saves the jobs that are due; allows commits up to the first observation that a snapshot lacks."""
        now = time.time()
        if self._saving is None and now >= self._retry_at_seconds:
            self._saving = await self._begin_save(now)
        if self._saving is not None:
            await asyncio.wait([self._saving], timeout=_SAVE_WAIT_SECONDS)
            if self._saving.done():
                saved, self._saving = self._saving, None
                saved.result()
        allowed = {}
        for partition, position in positions.items():
            jobs = self._jobs.get(partition, {}).values()
            needed = [offset for each in jobs for offset in (each.first_unsaved, each.saving_from)]
            allowed[partition] = min([position, *(offset for offset in needed if offset is not None)])
        return allowed

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Forgets the jobs of these partitions; whoever gets them loads the snapshots."""
        await self._end_save()
        for partition in partitions:
            self._jobs.pop(partition, None)
        self._count_jobs()

    async def _begin_save(self, now: float) -> asyncio.Task[None]:
        """Takes states of the jobs that are due longest, and starts to write them and to drop those that are over."""
        all_due = [
            (partition, job_id, watched)
            for partition, jobs in self._jobs.items()
            for job_id, watched in jobs.items()
            if watched.first_unsaved is not None and now >= watched.save_due_seconds
        ]
        due = nsmallest(_MOST_SAVED_TOGETHER, all_due, key=lambda one: one[2].save_due_seconds)
        snapshots = [
            SnapshotRecord(
                *partition, job_id, watched.next_offset, await self._worker.run(watched.detector.to_snapshot)
            )
            for partition, job_id, watched in due
        ]
        for _, _, watched in due:
            watched.saving_from, watched.first_unsaved = watched.first_unsaved, None
        return asyncio.create_task(self._save([watched for _, _, watched in due], snapshots))

    async def _save(self, due: Sequence[_Watched], snapshots: Sequence[SnapshotRecord]) -> None:
        try:
            if snapshots:
                await self._store.save(snapshots)
            for watched in due:
                watched.saving_from = None
                watched.save_due_seconds = time.time() + self._snapshot_seconds
            self._metrics.snapshot_bytes.inc(sum(len(snapshot.state) for snapshot in snapshots))
            await self._forget(time.time())
        except OSError:
            self._metrics.snapshot_failures.inc()
            self._retry_at_seconds = time.time() + _RETRY_SECONDS
        finally:
            for watched in due:
                if watched.saving_from is not None:
                    watched.first_unsaved, watched.saving_from = watched.saving_from, None

    async def _end_save(self) -> None:
        """Partitions change hands: a snapshot written late would contradict those of their next owner."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)

    async def _forget(self, now: float) -> None:
        """Drops jobs that ended, or that were silent for a day, once their last state is saved."""
        for jobs in list(self._jobs.values()):
            over = [
                job_id
                for job_id, watched in list(jobs.items())
                if watched.first_unsaved is None
                and (silent_seconds := now - watched.last_seen_seconds) > FORGET_FINISHED_SECONDS
                and (silent_seconds > _FORGET_SECONDS or await self._is_finished(watched.detector))
            ]
            if over:
                await self._store.forget(over)
                for job_id in over:
                    # It may have spoken meanwhile; then its next snapshot brings the row back.
                    if jobs[job_id].first_unsaved is None:
                        del jobs[job_id]
                self._count_jobs()

    async def _is_finished(self, detector: GuardedDetector) -> bool:
        return detector.finished() if detector.has_begun else await self._worker.run(detector.finished)

    def _begin(self, job_id: str, offset: int, snapshot: bytes | None = None) -> _Watched:
        """A job that is watched from an offset on."""
        now = time.time()
        return _Watched(
            detector=GuardedDetector(
                job_id,
                iterations_per_false_alarm=self._iterations_per_false_alarm,
                on_failure=self._metrics.failures.inc,
                snapshot=snapshot,
            ),
            next_offset=offset,
            save_due_seconds=now + self._snapshot_seconds,
            last_seen_seconds=now,
        )

    def _count(self, finding: Finding) -> None:
        if isinstance(finding, Verdict):
            self._metrics.verdicts.labels(finding.kind.value).inc()
            _log_verdict(finding)
        elif isinstance(finding, Profile):
            self._metrics.profiles.inc()
        else:
            self._metrics.suspicions.inc()

    def _count_jobs(self) -> None:
        self._metrics.jobs.set(sum(len(jobs) for jobs in self._jobs.values()))


def _note_news(watched: _Watched, batch: Batch[Arrived], messages: Sequence[Message[Arrived]]) -> None:
    """What the next snapshot of a job has to hold."""
    if watched.first_unsaved is None:
        watched.first_unsaved = messages[0].record.offset
    watched.last_seen_seconds = batch.received_at_seconds


def _log_verdict(verdict: Verdict) -> None:
    _log.info(
        "verdict",
        job_id=verdict.job_id,
        kind=verdict.kind.value,
        ranks=[culprit.rank for culprit in verdict.culprits],
        throughput=round(verdict.throughput, 3),
        confidence=round(verdict.confidence, 4),
        first_iteration=verdict.first_iteration,
        decided_iteration=verdict.decided_iteration,
        verdict_id=verdict.verdict_id,
    )
