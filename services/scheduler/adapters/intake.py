"""Verdicts, profiles and suspicions from Kafka to the coordinator."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

from evenkeel.contracts.topics import PROFILES
from evenkeel.history.records import VerdictRecord
from evenkeel.services.common.kafka import Batch, Partition, Rejection
from evenkeel.services.common.kafka.records import Message
from evenkeel.services.scheduler.adapters.findings import Finding
from evenkeel.services.scheduler.adapters.store.held_back import Held, HeldBack
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile
from evenkeel.services.scheduler.domain.suspicion import Suspicion
from evenkeel.services.scheduler.serving.coordinator import Coordinator
from evenkeel.services.scheduler.serving.faults import JobAwayError, JobFailedError

_STALE_SUSPICION_SECONDS = 30.0
# Some of the longest pauses; a restart reads again from the oldest record that is held back.
_LONGEST_HOLD_SECONDS = 900.0


class Intake:
    """Hands findings to the coordinator; see :class:`evenkeel.services.common.kafka.loop.Handler`.

    Verdicts are durable when ``handle`` returns, or held back with the offsets of those that follow. Profiles are not
    stored: each is replaced by the next, and after a restart the compacted topic is read again from its beginning.
    Suspicions are answered if they are fresh. What makes a job fail is offered once more when that job has begun anew,
    alone, and then set aside.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        bury: Callable[[Sequence[Rejection]], Awaitable[None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            coordinator: Loaded already.
            bury: Puts records into the dead-letter topic.
            clock: Unix seconds: a suspicion from before an outage is not worth a probe.
        """
        self._coordinator = coordinator
        self._bury = bury
        self._clock = clock
        self._held: HeldBack[Finding] = HeldBack()

    async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Profiles from the beginning, verdicts from the committed offset."""
        return {partition: 0 for partition in partitions if partition.topic == PROFILES.name}

    async def handle(self, batch: Batch[Finding]) -> Sequence[Rejection]:
        """Verdicts job by job and in order; of profiles and suspicions each job's newest."""
        by_job: dict[str, list[Message[Finding]]] = {}
        for message in batch.messages:
            by_job.setdefault(message.content.job_id, []).append(message)
        for job_id, all_messages in by_job.items():
            messages = all_messages
            if not isinstance(messages[-1].content, VerdictRecord):
                messages = [_taken_at(messages[-1], batch.received_at_seconds)]
                self._held.supersede(job_id, batch.partition.topic)
            error = JobAwayError(job_id) if self._held.has(job_id) else await self._offer(job_id, messages)
            if error is not None:
                tries = 1 if isinstance(error, JobFailedError) else 0
                self._held.add(job_id, messages, batch.received_at_seconds, tries=tries)
        return ()

    async def tick(self, now_seconds: float) -> None:
        """Offers again what was held back of jobs that are back, and sets aside what makes them fail again."""
        for job_id in self._held.job_ids:
            while self._coordinator.is_ready(job_id) and (again := self._held.next_of(job_id)):
                error = await self._offer(job_id, [one.message for one in again])
                if isinstance(error, JobFailedError):
                    for one in again:
                        one.tries += 1
                    twice = [one for one in again if one.tries > 1]
                    await self._set_aside(job_id, twice, "job_failed", "the scheduler failed on the job twice over it")
                if error is not None:
                    break
                self._held.drop(job_id, again)
            late = self._held.older_than(job_id, now_seconds - _LONGEST_HOLD_SECONDS)
            await self._set_aside(job_id, late, "job_away", "the scheduler could not go on with the job for long")

    async def checkpoint(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Everything handled is durable, but for what is held back."""
        oldest = self._held.oldest_offsets
        return {partition: min(offset, oldest.get(partition, offset)) for partition, offset in positions.items()}

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Jobs stay: they belong to the instance that serves their fleet API. What is held back is read again."""
        self._held.forget(partitions)

    async def _offer(self, job_id: str, messages: Sequence[Message[Finding]]) -> JobAwayError | None:
        """None when the job took them all."""
        try:
            await self._give(job_id, [message.content for message in messages])
        except JobAwayError as error:
            return error
        return None

    async def _set_aside(self, job_id: str, over: Sequence[Held[Finding]], error: str, reason: str) -> None:
        await self._bury(
            [
                Rejection(record=one.message.record, error=error, reason=reason, attempts=max(1, one.tries))
                for one in over
            ]
        )
        self._held.drop(job_id, over)

    async def _give(self, job_id: str, findings: Sequence[Finding]) -> None:
        if verdicts := [finding for finding in findings if isinstance(finding, VerdictRecord)]:
            await self._coordinator.take_verdicts(job_id, verdicts)
        for finding in findings:
            if isinstance(finding, JobProfile):
                await self._coordinator.take_profile(finding)
            elif isinstance(finding, JobEnded):
                await self._coordinator.take_end(finding)
            elif isinstance(finding, Suspicion) and self._is_fresh(finding):
                await self._coordinator.take_suspicion(finding)

    def _is_fresh(self, suspicion: Suspicion) -> bool:
        return self._clock() - suspicion.at_unix_seconds < _STALE_SUSPICION_SECONDS


def _taken_at(message: Message[Finding], unix_seconds: float) -> Message[Finding]:
    finding = message.content
    if not isinstance(finding, JobProfile):
        return message
    return message._replace(content=replace(finding, taken_at_unix_seconds=unix_seconds))
