"""Verdicts, profiles and suspicions from Kafka to the coordinator."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from evenkeel.contracts.topics import PROFILES
from evenkeel.history.records import VerdictRecord
from evenkeel.services.common.kafka import Batch, ConsumedRecord, Partition, Rejection
from evenkeel.services.scheduler.adapters.findings import Finding
from evenkeel.services.scheduler.domain.profiles import JobProfile
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.serving.coordinator import Coordinator
from evenkeel.services.scheduler.serving.faults import JobFailedError

# Some of the longest pauses; a restart reads again from the oldest record that waits.
_LONGEST_WAIT_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A record whose job has not taken it yet."""

    record: ConsumedRecord
    told: "asyncio.Future[None]"
    since_seconds: float


class Intake:
    """Hands findings to the coordinator; see :class:`evenkeel.services.common.kafka.loop.Handler`.

    Each waits for its job in that job's own queue; offsets follow what is durable. Profiles are not stored: each is
    replaced by the next, and after a restart the compacted topic is read again from its beginning. What made a job fail
    twice is set aside.
    """

    def __init__(self, coordinator: Coordinator, *, bury: Callable[[Sequence[Rejection]], Awaitable[None]]) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            coordinator: Loaded already.
            bury: Puts records into the dead-letter topic.
        """
        self._coordinator = coordinator
        self._bury = bury
        self._given: list[_Given] = []

    async def assigned(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Profiles from the beginning, verdicts from the committed offset."""
        return {partition: 0 for partition in partitions if partition.topic == PROFILES.name}

    async def handle(self, batch: Batch[Finding]) -> Sequence[Rejection]:
        """Each goes to its job."""
        since_seconds = batch.received_at_seconds
        for message in batch.messages:
            told = self._coordinator.tell(message.content.job_id, _event_of(message.content, since_seconds))
            self._given.append(_Given(record=message.record, told=told, since_seconds=since_seconds))
        return ()

    async def tick(self, now_seconds: float) -> None:
        """Sets aside what made its job fail twice, or has waited for too long."""
        left = list[_Given]()
        for one in self._given:
            if not one.told.done():
                if now_seconds - one.since_seconds <= _LONGEST_WAIT_SECONDS:
                    left.append(one)
                    continue
                one.told.cancel()
                await self._set_aside(one, "job_away", "the scheduler could not go on with the job for long", 1)
            elif isinstance(error := one.told.exception(), JobFailedError):
                await self._set_aside(one, "job_failed", "the scheduler failed on the job twice over it", 2)
            elif error is not None:
                raise error
        self._given = left

    async def checkpoint(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Everything is durable that no job has still to take."""
        allowed = dict(positions)
        for one in self._given:
            partition = one.record.partition
            allowed[partition] = min(one.record.offset, allowed.get(partition, one.record.offset))
        return {partition: allowed[partition] for partition in positions}

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Jobs stay: they belong to the instance that serves their fleet API. What waits is read again."""
        for one in self._given:
            if one.record.partition in partitions:
                one.told.cancel()
        self._given = [one for one in self._given if one.record.partition not in partitions]

    async def _set_aside(self, one: _Given, error: str, reason: str, attempts: int) -> None:
        await self._bury([Rejection(record=one.record, error=error, reason=reason, attempts=attempts)])


def _event_of(finding: Finding, unix_seconds: float) -> events.Event:
    match finding:
        case VerdictRecord():
            return events.VerdictsTaken((finding,))
        case JobProfile():
            return replace(finding, taken_at_unix_seconds=unix_seconds)
    return finding
