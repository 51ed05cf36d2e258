"""Findings on their way to their jobs: offsets follow what is durable, and what a job cannot take is set aside."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from evenkeel.services.common.kafka import Batch, ConsumedRecord, Partition, Rejection
from evenkeel.services.common.kafka.records import Message
from evenkeel.services.scheduler.adapters.intake import Intake
from evenkeel.services.scheduler.domain.profiles import JobEnded
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.serving.faults import JobFailedError

pytestmark = pytest.mark.asyncio

VERDICTS, PROFILES = Partition("verdicts", 0), Partition("profiles", 0)


class Fleet:
    """Jobs that take what they are told when a test says so."""

    def __init__(self) -> None:
        self.told: list[asyncio.Future[None]] = []
        self.buried: list[tuple[int, str, int]] = []
        self.intake = Intake(self, bury=self.bury)  # type: ignore[arg-type]

    def tell(self, job_id: str, event: events.Event) -> "asyncio.Future[None]":
        self.told.append(asyncio.get_running_loop().create_future())
        return self.told[-1]

    async def bury(self, rejections: Sequence[Rejection]) -> None:
        self.buried += [(one.record.offset, one.error, one.attempts) for one in rejections]

    async def hand(self, partition: Partition, *offsets: int) -> None:
        records = [
            ConsumedRecord(partition=partition, offset=one, timestamp_seconds=0.0, key=b"job", value=b"", headers=())
            for one in offsets
        ]
        messages: list[Message[Any]] = [Message(content=JobEnded(job_id="job"), record=one) for one in records]
        await self.intake.handle(
            Batch(
                partition=partition,
                records=records,
                messages=messages,
                next_offset=offsets[-1] + 1,
                received_at_seconds=10.0,
            )
        )

    async def allowed(self) -> dict[Partition, int]:
        return dict(await self.intake.checkpoint({VERDICTS: 9, PROFILES: 9}))


async def test_offsets_follow_what_the_jobs_have_taken() -> None:
    fleet = Fleet()
    await fleet.hand(VERDICTS, 3, 4, 5)
    await fleet.hand(PROFILES, 7)
    assert await fleet.allowed() == {VERDICTS: 3, PROFILES: 7}
    for taken in (fleet.told[0], fleet.told[2], fleet.told[3]):
        taken.set_result(None)
    await fleet.intake.tick(11.0)
    assert await fleet.allowed() == {VERDICTS: 4, PROFILES: 9}
    await fleet.intake.revoked([VERDICTS])
    assert fleet.told[1].cancelled()
    assert await fleet.allowed() == {VERDICTS: 9, PROFILES: 9}


async def test_what_made_a_job_fail_twice_or_waited_for_too_long_is_set_aside() -> None:
    fleet = Fleet()
    await fleet.hand(VERDICTS, 3, 4)
    fleet.told[0].set_exception(JobFailedError("job"))
    await fleet.intake.tick(11.0)
    assert fleet.buried == [(3, "job_failed", 2)]
    await fleet.intake.tick(909.0)
    assert await fleet.allowed() == {VERDICTS: 4, PROFILES: 9}
    await fleet.intake.tick(911.0)
    assert fleet.buried[1:] == [(4, "job_away", 1)]
    assert fleet.told[1].cancelled()
    assert await fleet.allowed() == {VERDICTS: 9, PROFILES: 9}


async def test_another_error_is_the_service_s() -> None:
    fleet = Fleet()
    await fleet.hand(VERDICTS, 3)
    fleet.told[0].set_exception(KeyError(3))
    with pytest.raises(KeyError):
        await fleet.intake.tick(11.0)
