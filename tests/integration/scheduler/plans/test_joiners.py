"""Replacements that die before they have done anything: the others go on, and the next replacement is taken in."""

import pytest

from evenkeel.history.vocabulary import JobState, PlanMode, PlanState, VerdictKind
from evenkeel.layouts.rank_state import RankPhase
from tests.integration.scheduler.conftest import World

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def test_a_replacement_killed_between_prepare_and_its_first_step_keeps_nobody_out(world: World) -> None:
    world.toys.ranks[6].kill()
    await world.say(VerdictKind.FAIL_STOP, 6)
    await world.until_epoch(1)

    for toy in world.toys.ranks.values():
        toy.hold_rendezvous.set()
    joiner = world.toys.replace(6)
    joiner.hold_rendezvous.set()
    await world.register(joiner)
    await world.say(VerdictKind.REJOINED, 6, incarnation=1, throughput=1.0)
    await world.until(lambda: joiner.mailbox.state.phase is RankPhase.RESHAPING, "the joiner on its way")
    joiner.kill()
    for toy in world.toys.ranks.values():
        toy.hold_rendezvous.clear()
    await world.say(VerdictKind.FAIL_STOP, 6, incarnation=1)
    await world.until(lambda: world.job.state is JobState.RUNNING and world.job.epoch >= 3, "a recovery")

    last = world.toys.replace(6)
    await world.register(last)
    await world.say(VerdictKind.REJOINED, 6, incarnation=2, throughput=1.0)
    await world.until(lambda: world.job.layout.replicas == world.toys.home.replicas, "the full shape")
    await world.until(lambda: last.steps > 0 and last.epoch == world.job.epoch, "steps of the last replacement")
    await world.steps_are_gapless()
    plans = [(plan.plan.mode, plan.state) for plan in await world.plans()]
    assert plans[-1] == (PlanMode.BOUNDARY, PlanState.APPLIED)
    assert len(plans) <= 6, f"plans were made in vain: {plans}"
