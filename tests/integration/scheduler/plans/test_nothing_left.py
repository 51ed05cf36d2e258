"""When nobody alive holds a slice: the plan is refused with words for a person, and the job goes on when it can."""

import asyncio
import time

import pytest
from sqlalchemy import text

from evenkeel.history.vocabulary import JobState, PlanState, VerdictKind
from tests.integration.scheduler.conftest import DEADLINE_SECONDS, HOME, World

pytestmark = pytest.mark.integration


async def until_stuck(world: World) -> str:
    """Wait for the refusal in the history; gives its words."""
    ends = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < ends:
        refused = [plan.detail for plan in await world.plans() if plan.state is PlanState.ABORTED]
        if refused and "nothing to go on" in refused[-1] and world.job.state is JobState.STUCK:
            return refused[-1]
        await asyncio.sleep(0.02)
    raise AssertionError(f"the job is not stuck: {world.job}")


async def lose_both_holders(world: World) -> None:
    """Ranks 3 and 7 hold the same shard, one in each replica."""
    for rank in (3, 7):
        world.toys.ranks[rank].kill()
    for rank in (3, 7):
        await world.say(VerdictKind.FAIL_STOP, rank)


@pytest.mark.asyncio
async def test_a_plan_for_slices_that_nobody_has_is_refused_before_anything_changes(world: World) -> None:
    await lose_both_holders(world)
    words = await until_stuck(world)
    assert "held by nobody alive" in words
    assert "ranks [3, 7]" in words
    assert world.view.standing.stuck is not None
    assert world.view.standing.stuck.detail == words
    assert {toy.epoch for rank, toy in world.toys.ranks.items() if rank not in (3, 7)} == {0}
    async with world.engine.connect() as connection:
        notes = await connection.execute(
            text(
                "SELECT e.detail FROM incident_events e JOIN incidents i USING (incident_id) "
                "WHERE i.job_id = :job AND e.kind = 'note'"
            ),
            {"job": world.toys.job_id},
        )
        assert any("held by nobody alive" in detail for (detail,) in notes)


@pytest.mark.asyncio
async def test_a_job_that_was_refused_goes_on_by_itself_when_its_ranks_see_a_checkpoint(world: World) -> None:
    await lose_both_holders(world)
    await until_stuck(world)
    for toy in world.toys.ranks.values():
        toy.see_checkpoints(4, 8)
    await world.until(lambda: world.job.state is JobState.RUNNING, "a plan from the checkpoint")
    await world.until_epoch(world.job.epoch)
    assert world.view.standing.stuck is None
    last = (await world.plans())[-1]
    assert last.state is PlanState.APPLIED
    assert last.decision is not None
    assert last.decision["from_checkpoint"]
    assert (last.decision["steps_applied"], last.decision["sources"]) == (8, [])


@pytest.mark.asyncio
async def test_a_job_whose_ranks_all_died_goes_on_from_disk_with_their_replacements(world: World) -> None:
    for toy in world.toys.ranks.values():
        toy.kill()
    for rank in HOME.ranks:
        await world.say(VerdictKind.FAIL_STOP, rank)
    await world.until(lambda: world.job.state is JobState.STUCK, "nobody left")
    (counted,) = world.coordinator._parts.metrics.jobs_in_state.collect()
    told = {one.labels["state"]: one.value for one in counted.samples}
    assert told == {"running": 0, "reshaping": 0, "stuck": 1, "degraded": 0}
    for rank in HOME.ranks:
        newer = world.toys.replace(rank)
        newer.see_checkpoints(8)
        await world.register(newer)
        await world.say(VerdictKind.REJOINED, rank, incarnation=1)
    await world.until(lambda: world.job.layout.ranks == HOME.ranks and world.job.state is JobState.RUNNING, "all back")
    assert min(toy.steps for toy in world.toys.ranks.values()) >= 8
    assert all(incident.resolved_at is not None for incident in await world.incidents())
