"""What screens are told of a job: who trains, who does not and why, and a job that never began."""

import asyncio
import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from evenkeel.history import reads
from evenkeel.history.records import JobRecord, RankExitRecord
from evenkeel.history.vocabulary import JobState, VerdictKind
from evenkeel.services.scheduler.domain.stuck import StuckReason
from evenkeel.services.scheduler.serving.news import JobView
from tests.integration.scheduler.conftest import HOME, World

pytestmark = pytest.mark.integration

LINE = "ZeroDivisionError: division by zero"


def exit_of(job_id: str, rank: int, *, line: str = LINE) -> RankExitRecord:
    return RankExitRecord(job_id=job_id, rank=rank, incarnation=0, code=1, last_line=line, at=datetime.now(UTC))


async def unborn(world: World) -> str:
    """A second job, none of whose processes ever registers."""
    record = JobRecord(
        job_id=f"unborn-{uuid.uuid4().hex[:8]}",
        name="unborn",
        model=(await world.in_history()).record.model,
        layout=HOME,
        registered_at=datetime.now(UTC),
        job_token="a-token-of-this-job",
    )
    await world.coordinator.register_job(record)
    return record.job_id


def view(world: World, job_id: str) -> JobView:
    found = world.coordinator.job(job_id)
    assert found is not None
    return found


@pytest.mark.asyncio
async def test_a_watcher_is_told_when_ranks_begin_to_train_and_who_waits_for_a_plan(world: World) -> None:
    told: list[str] = []

    async def watch() -> None:
        async for news in world.coordinator.watch(world.toys.job_id):
            told.extend([news.standing.summary] if isinstance(news, JobView) else [])

    watching = asyncio.create_task(watch())
    await world.until(lambda: told and told[-1].startswith("training 8 of 8"), "all of them")
    assert "cannot survive the loss of rank 0 + rank 4, " in told[-1], "toys keep no copies"
    world.toys.ranks[3].kill()
    await world.say(VerdictKind.FAIL_STOP, 3)
    await world.until(lambda: "gone 1 (rank 3)" in told[-1] and "training 7 of 8" in told[-1], "a layout without it")
    watching.cancel()


@pytest.mark.asyncio
async def test_a_job_that_nobody_comes_for_is_stuck_at_the_deadline_and_freed_by_a_registration(world: World) -> None:
    await world.restart(start_deadline_seconds=0.2)
    job_id = await unborn(world)
    assert view(world, job_id).known.state is JobState.RUNNING
    await world.until(lambda: view(world, job_id).known.state is JobState.STUCK, "the deadline")
    assert "none of its processes has registered in 0.2 s" in view(world, job_id).standing.summary
    assert world.job.state is JobState.RUNNING, "the other one has begun"
    said = text("SELECT detail FROM job_events WHERE job_id = :job AND state = 'stuck'")
    details: list[str] = []
    while not details:
        async with world.engine.connect() as connection:
            details = list((await connection.execute(said, {"job": job_id})).scalars())
    assert details == ["none of its processes has registered in 0.2 s"]
    first = next(iter(world.toys.ranks.values()))
    await world.coordinator.register_ranks(job_id, [replace(world.record_of(first), job_id=job_id)])
    assert view(world, job_id).known.state is JobState.RUNNING


@pytest.mark.asyncio
async def test_a_wrong_import_is_a_stuck_job_with_its_reason_also_after_a_restart(world: World) -> None:
    job_id, line = await unborn(world), "ModuleNotFoundError: No module named 'my_model'"
    await world.coordinator.report_exits(job_id, [exit_of(job_id, rank, line=line) for rank in HOME.ranks])
    for _ in range(2):
        await world.until(lambda: view(world, job_id).known.state is JobState.STUCK, "its end")
        stuck = view(world, job_id).standing.stuck
        assert stuck is not None
        assert stuck.reason is StuckReason.NOT_STARTED
        assert line in stuck.detail
        await world.restart()
    await world.coordinator.finish_job(job_id, f"exit status 1: {line}")
    known = await world.scheduler.store.read(reads.get_job, job_id)
    assert known is not None
    assert (known.state, known.detail) == (JobState.FINISHED, f"failed: exit status 1: {line}")


@pytest.mark.asyncio
async def test_an_error_on_one_rank_is_the_programs_and_the_job_goes_on_without_it(world: World) -> None:
    world.toys.ranks[3].kill()
    await world.coordinator.report_exits(world.toys.job_id, [exit_of(world.toys.job_id, 3)])
    await world.coordinator.report_exits(world.toys.job_id, [exit_of(world.toys.job_id, 3)])
    await world.say(VerdictKind.FAIL_STOP, 3)
    await world.until(lambda: 3 not in world.job.layout.ranks, "a layout without rank 3")
    assert [incident.kind for incident in await world.incidents()] == [VerdictKind.PROGRAM_ERROR]
    await world.restart()
    assert [incident.kind for incident in await world.incidents()] == [VerdictKind.PROGRAM_ERROR]


@pytest.mark.asyncio
async def test_a_death_whose_cause_is_told_later_is_counted_for_no_node(world: World) -> None:
    world.toys.ranks[3].kill()
    await world.say(VerdictKind.FAIL_STOP, 3)
    failures = text("SELECT count(*) FROM failures_by_node_week WHERE node = 'node-0'")
    async with world.engine.connect() as connection:
        assert await connection.scalar(failures) == 1
    await world.coordinator.report_exits(world.toys.job_id, [exit_of(world.toys.job_id, 3)])
    async with world.engine.connect() as connection:
        assert await connection.scalar(failures) == 0
        ended = await connection.scalar(
            text("SELECT ended_by FROM rank_incarnations WHERE job_id = :job AND rank = 3"),
            {"job": world.toys.job_id},
        )
    assert ended == "program_error"
    await world.restart()
    assert [incident.kind for incident in await world.incidents()] == [VerdictKind.PROGRAM_ERROR]


@pytest.mark.asyncio
async def test_an_error_on_all_ranks_is_one_incident_and_says_what_to_repair(world: World) -> None:
    for toy in world.toys.ranks.values():
        toy.kill()
    await world.coordinator.report_exits(world.toys.job_id, [exit_of(world.toys.job_id, rank) for rank in HOME.ranks])
    await world.until(lambda: world.job.state is JobState.STUCK, "nobody left")
    assert [incident.kind for incident in await world.incidents()] == [VerdictKind.PROGRAM_ERROR]
    assert f"the program raised {LINE}" in world.view.standing.summary
