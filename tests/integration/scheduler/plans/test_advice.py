"""A job whose training loop cannot be reshaped: incidents and advice in the history, and never a plan on its way."""

import pytest
from sqlalchemy import text

from evenkeel.history import reads
from evenkeel.history.vocabulary import JobState, PlanMode, PlanState, VerdictKind
from evenkeel.services.scheduler.adapters.api.codec import job_to_proto
from evenkeel.services.scheduler.domain.profiles import JobEnded
from tests.integration.scheduler.conftest import World

pytestmark = pytest.mark.integration


@pytest.fixture
def can_reshape() -> bool:
    return False


async def states_in_history(world: World) -> list[tuple[str, str]]:
    async with world.engine.connect() as connection:
        rows = await connection.execute(
            text("SELECT what, detail FROM job_history WHERE job_id = :job ORDER BY at, place"),
            {"job": world.toys.job_id},
        )
        return [(row.what, row.detail) for row in rows]


@pytest.mark.asyncio
async def test_a_death_leads_to_advice_that_the_history_keeps_and_to_a_job_that_is_degraded(world: World) -> None:
    world.toys.ranks[3].kill()
    await world.say_and_plan(VerdictKind.FAIL_STOP, 3)
    assert world.job.state is JobState.DEGRADED
    assert not world.job.can_reshape
    (plan,) = await world.plans()
    (incident,) = await world.incidents()
    assert (plan.state, plan.plan.mode, plan.plan.epoch) == (PlanState.ADVISED, PlanMode.RECOVER, 1)
    assert plan.plan.incident_id == incident.incident_id
    assert "Restart it without rank 3" in plan.detail
    assert plan.plan.predicted_seconds > 0.0
    assert incident.notes == (plan.detail,)
    told = await states_in_history(world)
    assert ("job degraded", "ranks [3] are gone") in told
    assert ("plan advised", plan.detail) in told
    assert ("incident note", plan.detail) in told
    assert (world.job.epoch, {toy.mailbox.state.phase for rank, toy in world.toys.ranks.items() if rank != 3}) == (
        0,
        {"training"},
    )


@pytest.mark.asyncio
async def test_a_scheduler_that_starts_again_knows_it_and_says_nothing_twice(world: World) -> None:
    world.toys.ranks[3].kill()
    await world.say_and_plan(VerdictKind.FAIL_STOP, 3)
    before = await states_in_history(world)
    await world.restart()
    assert world.job.state is JobState.DEGRADED
    assert not world.job.can_reshape
    assert await states_in_history(world) == before


@pytest.mark.asyncio
async def test_a_replacement_in_its_place_makes_the_job_whole_again(world: World) -> None:
    world.toys.ranks[3].kill()
    await world.say_and_plan(VerdictKind.FAIL_STOP, 3)
    newer = world.toys.replace(3)
    await world.register(newer)
    await world.say(VerdictKind.REJOINED, 3, incarnation=1)
    assert world.job.state is JobState.RUNNING
    (incident,) = await world.incidents()
    assert incident.resolved_at is not None
    await world.restart()
    assert world.job.state is JobState.RUNNING
    assert [info.process for info in world.job.ranks.values() if info.incarnation] == [(3, 1)]


@pytest.mark.asyncio
async def test_a_slow_device_is_told_with_numbers_and_nobody_is_asked_to_prepare(world: World) -> None:
    await world.say_and_plan(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    assert (world.job.state, world.job.epoch) == (JobState.RUNNING, 0)
    (plan,) = await world.plans()
    assert (plan.state, plan.plan.mode) == (PlanState.ADVISED, PlanMode.BOUNDARY)
    assert 0.0 < plan.plan.predicted_seconds < plan.plan.idle_seconds
    assert "The plan pays: it saves" in plan.plan.reason
    assert "another device in place of gpu-3 of node-0 to win back" in plan.detail
    assert all(toy.mailbox.committed_epoch() <= 0 for toy in world.toys.ranks.values())


@pytest.mark.asyncio
async def test_when_all_are_gone_there_is_a_note_and_no_plan(world: World) -> None:
    for rank, toy in world.toys.ranks.items():
        toy.kill()
        await world.say_and_plan(VerdictKind.FAIL_STOP, rank)
    assert world.job.state is JobState.DEGRADED
    notes = [note for incident in await world.incidents() for note in incident.notes]
    assert "Restart it with all of its ranks" in notes[-1]
    await world.coordinator.finish_job(world.toys.job_id)
    assert all(incident.resolved_at is not None for incident in await world.incidents())
    known = await world.scheduler.store.read(reads.get_job, world.toys.job_id)
    assert known is not None
    assert known.state is JobState.FINISHED


@pytest.mark.asyncio
async def test_a_job_all_of_whose_processes_are_done_is_finished_after_a_while(world: World) -> None:
    await world.restart(ended_seconds=0.05)
    await world.until(lambda: all(t.server.num_watches for t in world.toys.ranks.values()), "streams to all")
    *others, last = world.toys.ranks.values()
    for toy in others:
        toy.say_done()
    await world.until(lambda: sum(rank.alive for rank in job_to_proto(world.view).ranks) == 1, "the ends")
    assert world.job.state is JobState.RUNNING
    last.say_done()
    await world.until(lambda: world.coordinator.job(world.toys.job_id) is None, "the end of the job")
    known = await world.scheduler.store.read(reads.get_job, world.toys.job_id)
    assert known is not None
    assert known.state is JobState.FINISHED
    assert world.scheduler.broken == []


@pytest.mark.asyncio
async def test_a_job_one_of_whose_processes_is_gone_is_not_finished_by_the_ends_of_the_others(world: World) -> None:
    await world.restart(ended_seconds=0.0)
    await world.until(lambda: all(t.server.num_watches for t in world.toys.ranks.values()), "streams to all")
    world.toys.ranks[3].kill()
    await world.say_and_plan(VerdictKind.FAIL_STOP, 3)
    for rank, toy in world.toys.ranks.items():
        if rank != 3:
            toy.say_done()
    await world.until(lambda: not any(rank.alive for rank in job_to_proto(world.view).ranks), "the ends")
    await world.coordinator.tell(world.toys.job_id, JobEnded(job_id=world.toys.job_id))
    assert world.job.state is JobState.DEGRADED
