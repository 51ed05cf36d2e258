"""Ranks whose processes come up long after the others, and a death meanwhile."""

import pytest

from evenkeel.history.vocabulary import JobState, PlanMode, PlanState, VerdictKind
from tests.integration.scheduler.conftest import World
from tests.integration.scheduler.toy_job import ToyRank

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

LATE = 5


@pytest.fixture
def late_ranks() -> tuple[int, ...]:
    return (LATE,)


async def test_a_recovery_waits_for_a_rank_that_comes_up(world: World) -> None:
    world.toys.ranks[2].kill()
    await world.say(VerdictKind.FAIL_STOP, 2)
    assert (world.job.state, await world.plans()) == (JobState.RESHAPING, [])
    await world.register(world.toys.ranks[LATE])
    await world.until_epoch(1)
    (plan,) = await world.plans()
    assert plan.plan.throughputs is not None
    assert LATE in plan.plan.throughputs, "it was counted on"


async def test_one_that_waits_for_an_epoch_that_others_have_left_joins_at_a_boundary(world: World) -> None:
    await world.restart(registration_seconds=0.05)
    # Its process is there, and in nobody's groups yet.
    world.toys.ranks[LATE].kill()
    late = world.toys.ranks[LATE] = ToyRank(world.toys, LATE)
    late.epoch, late.held, late.layout = 0, (0,), world.toys.home
    world.toys.ranks[2].kill()
    await world.say(VerdictKind.FAIL_STOP, 2)
    await world.until_epoch(1)
    assert {2, LATE}.isdisjoint(world.job.layout.ranks)
    late.start()
    late.mailbox.interrupt(0, leave=False)
    await world.until(lambda: late.mailbox.state.phase == "parked", "the late rank to find nobody")
    await world.register(late)
    await world.until(lambda: LATE in world.job.layout.ranks, "the late rank in its place")
    await world.until_epoch(world.job.epoch)
    assert [(each.plan.mode, each.state) for each in await world.plans()] == [
        (PlanMode.RECOVER, PlanState.APPLIED),
        (PlanMode.BOUNDARY, PlanState.APPLIED),
    ]
    assert world.job.state is JobState.RUNNING
