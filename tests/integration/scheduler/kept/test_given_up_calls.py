"""A call that its client gave up half-way leaves no half of a change behind."""

import asyncio

import pytest

from evenkeel.history.vocabulary import VerdictKind
from tests.integration.scheduler.conftest import World

pytestmark = pytest.mark.integration


@pytest.mark.asyncio
async def test_a_rank_whose_registration_is_given_up_while_its_return_is_planned_comes_back(world: World) -> None:
    world.toys.ranks[6].kill()
    await world.say(VerdictKind.FAIL_STOP, 6)
    await world.until(lambda: 6 not in world.job.layout.ranks, "a layout without rank 6")
    newer = world.toys.replace(6)
    await world.say(VerdictKind.REJOINED, 6, incarnation=1)

    given_up = asyncio.create_task(world.register(newer))
    while world.job.ranks[6].incarnation == 0:  # noqa: ASYNC110 - the very next step of the loop is the one meant
        await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up

    await world.register(newer)
    await world.until(lambda: 6 in world.job.layout.ranks, "rank 6 back in its place")
    await world.steps_are_gapless()
