"""A job that may have another pipeline schedule gets it with a plan, over real gRPC and PostgreSQL, and keeps it."""

from dataclasses import replace

import pytest

from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts.layout import Layout, uniform_layout
from tests.integration.scheduler.conftest import World

pytestmark = pytest.mark.integration


@pytest.fixture
def home() -> Layout:
    bare = uniform_layout(num_blocks=8, tensor=1, pipeline=4, data=2, num_micro_batches=8)
    return replace(bare, schedules=("1f1b", "zb-h1"))


@pytest.mark.asyncio
async def test_a_slow_stage_brings_a_split_backward_that_outlives_the_scheduler(world: World) -> None:
    assert world.job.layout.schedule == "1f1b", "a healthy job is left as it is"
    await world.say(VerdictKind.COMPUTE_SLOW, 2, throughput=0.5)
    await world.until_epoch(1)
    assert world.job.layout.schedule == "zb-h1"
    assert all(toy.layout is not None and toy.layout.schedule == "zb-h1" for toy in world.toys.ranks.values())
    (plan,) = await world.plans()
    assert "schedule" in [action.lever for action in plan.plan.actions]

    await world.restart()
    world.toys.ranks[5].kill()
    await world.say(VerdictKind.FAIL_STOP, 5)
    await world.until_epoch(2)
    assert world.job.layout.schedule == "zb-h1"
    assert 5 not in world.job.layout.ranks
    await world.steps_are_gapless()
