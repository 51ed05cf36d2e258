"""kill -9 of the scheduler at any moment on the way of a plan: the job goes on, and no step is lost or doubled."""

import asyncio
import random

import pytest

from evenkeel.history.records import VerdictRecord
from evenkeel.history.vocabulary import JobState, PlanState, VerdictKind
from evenkeel.services.scheduler.jobs import events
from tests.integration.scheduler.conftest import World

pytestmark = pytest.mark.integration

_LONGEST_FLIGHT_SECONDS = 0.15
_DECIDED = (PlanState.COMMITTED, PlanState.APPLIED, PlanState.MEASURED)


async def tell_and_crash(world: World, verdict: VerdictRecord, moments: random.Random) -> None:
    """A verdict arrives, the scheduler dies somewhere on the way of what follows, and Kafka brings it again."""
    telling = asyncio.ensure_future(world.coordinator.tell(world.toys.job_id, events.VerdictsTaken((verdict,))))
    await asyncio.sleep(moments.random() * _LONGEST_FLIGHT_SECONDS)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    await world.restart()
    # A save that was under way may arrive after the next scheduler has read: that one then begins anew.
    await world.patiently(lambda: world.coordinator.tell(world.toys.job_id, events.VerdictsTaken((verdict,))))


async def goes_on(world: World) -> None:
    """Every rank that is alive and counted takes another step, and the job says that it runs."""
    await world.until(lambda: world.job.state is JobState.RUNNING, "a job that runs")
    steps = {rank: world.toys.ranks[rank].steps for rank in world.job.layout.ranks}
    await world.until(lambda: all(world.toys.ranks[rank].steps > steps[rank] for rank in steps), "another step")


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(3))
async def test_killed_anywhere_on_the_way_of_a_plan_the_job_goes_on(world: World, seed: int) -> None:
    moments = random.Random(seed)
    await tell_and_crash(world, world.verdict(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4), moments)
    await goes_on(world)
    world.toys.ranks[6].kill()
    await tell_and_crash(world, world.verdict(VerdictKind.FAIL_STOP, 6), moments)
    await world.until(lambda: 6 not in world.job.layout.ranks, "a layout without rank 6")
    await goes_on(world)
    newer = world.toys.replace(6)
    await world.patiently(lambda: world.register(newer))
    await tell_and_crash(world, world.verdict(VerdictKind.REJOINED, 6, incarnation=1), moments)
    await world.until(lambda: 6 in world.job.layout.ranks, "rank 6 back in its place")
    await goes_on(world)
    world.toys.ranks[3].hanging.set()
    await tell_and_crash(world, world.verdict(VerdictKind.HANG, 3), moments)
    await world.until(lambda: 3 not in world.job.layout.ranks, "a layout without rank 3")
    await goes_on(world)
    await world.steps_are_gapless()
    plans = await world.plans()
    decided = [plan.plan.epoch for plan in plans if plan.state in _DECIDED]
    assert decided == sorted(set(decided)), "each epoch is one plan's"
    assert all(plan.state is not PlanState.COMMITTED for plan in plans), "no decided plan is left behind"
