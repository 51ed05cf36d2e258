"""Verdicts in, reshaped jobs out: real PostgreSQL, real gRPC, real mailboxes; only the training loop is a toy."""

import asyncio
import time

import pytest

from evenkeel.history.vocabulary import JobState, PlanMode, PlanState, VerdictKind
from evenkeel.services.scheduler.dispatch.flight import FlightTimes
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.plans.outlook import FLIP_MEMORY_SECONDS
from tests.integration.scheduler.conftest import DEADLINE_SECONDS, World

pytestmark = pytest.mark.integration


@pytest.mark.asyncio
@pytest.mark.parametrize("rank", [0, 3, 7])
async def test_a_death_leads_to_a_layout_without_the_rank_and_training_goes_on(world: World, rank: int) -> None:
    world.toys.ranks[rank].kill()
    await world.say(VerdictKind.FAIL_STOP, rank)
    await world.until_epoch(1)
    assert rank not in world.job.layout.ranks
    assert world.job.state is JobState.RUNNING
    await world.steps_are_gapless()
    (plan,) = await world.plans()
    assert (plan.state, plan.plan.mode, plan.plan.epoch) == (PlanState.APPLIED, PlanMode.RECOVER, 1)
    assert plan.plan.predicted_seconds > 0
    (incident,) = await world.incidents()
    assert incident.plan_ids == (plan.plan.plan_id,)
    assert incident.resolved_at is None


@pytest.mark.asyncio
async def test_a_slow_device_gets_less_work_and_its_full_share_back_when_it_recovers(world: World) -> None:
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    await world.until_epoch(1)
    slow = world.job.layout
    assert slow.replicas != world.toys.home.replicas
    assert 3 in slow.ranks
    await world.say(VerdictKind.RECOVERED, 3, throughput=1.0)
    await world.until_epoch(2)
    assert world.job.layout.replicas == world.toys.home.replicas
    await world.steps_are_gapless()
    plans = await world.plans()
    assert [plan.plan.mode for plan in plans] == [PlanMode.BOUNDARY, PlanMode.BOUNDARY]
    (incident,) = await world.incidents()
    assert incident.resolved_at is not None
    assert incident.plan_ids == tuple(plan.plan.plan_id for plan in plans)


@pytest.mark.asyncio
async def test_a_layout_that_was_kept_for_a_restless_device_is_weighed_again_once_it_is_steady(world: World) -> None:
    later_seconds = 0.0
    await world.restart(second_look_seconds=0.1, clock=lambda: time.time() + later_seconds)
    kinds = [VerdictKind.COMPUTE_SLOW, VerdictKind.RECOVERED] * 10 + [VerdictKind.COMPUTE_SLOW]
    verdicts = [world.verdict(kind, 3, throughput=0.5 if kind is VerdictKind.COMPUTE_SLOW else 1.0) for kind in kinds]
    await world.coordinator.tell(world.toys.job_id, events.VerdictsTaken((*verdicts,)))
    assert await world.plans() == [], "what flips so often is not worth a plan"
    later_seconds = FLIP_MEMORY_SECONDS
    await world.until_epoch(1)
    (plan,) = await world.plans()
    assert plan.plan.mode is PlanMode.BOUNDARY
    await world.steps_are_gapless()


@pytest.mark.asyncio
async def test_a_way_home_that_did_not_pay_for_a_restless_device_is_weighed_again_once_it_is_steady(
    world: World,
) -> None:
    later_seconds = 0.0
    await world.restart(second_look_seconds=0.1, clock=lambda: time.time() + later_seconds)
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    await world.until_epoch(1)
    kinds = [VerdictKind.RECOVERED, VerdictKind.COMPUTE_SLOW] * 10 + [VerdictKind.RECOVERED]
    verdicts = [world.verdict(kind, 3, throughput=0.5 if kind is VerdictKind.COMPUTE_SLOW else 1.0) for kind in kinds]
    await world.coordinator.tell(world.toys.job_id, events.VerdictsTaken((*verdicts,)))
    assert len(await world.plans()) == 1, "what flips so often is not worth a plan, though everybody is well now"
    later_seconds = FLIP_MEMORY_SECONDS
    await world.until_epoch(2)
    assert world.job.layout.replicas == world.toys.home.replicas


@pytest.mark.asyncio
async def test_a_replacement_takes_its_place_and_closes_the_incident(world: World) -> None:
    world.toys.ranks[5].kill()
    await world.say(VerdictKind.FAIL_STOP, 5)
    await world.until_epoch(1)
    newer = world.toys.replace(5)
    await world.say(VerdictKind.REJOINED, 5, incarnation=1)
    assert world.job.epoch == 1, "a controller that nobody can call is no capacity yet"
    await world.register(newer)
    await world.until_epoch(2)
    assert world.job.layout.replicas == world.toys.home.replicas
    assert (await world.plans())[-1].plan.mode is PlanMode.BOUNDARY
    (incident,) = await world.incidents()
    assert incident.resolved_at is not None
    assert incident.lost_seconds > 0


@pytest.mark.asyncio
async def test_a_second_death_during_the_reshape_leads_to_a_second_plan_from_the_same_step(world: World) -> None:
    world.toys.ranks[4].hold_rendezvous.set()
    world.toys.ranks[2].kill()
    await world.say(VerdictKind.FAIL_STOP, 2)
    await world.until(lambda: world.toys.ranks[4].mailbox.state.phase == "reshaping", "the first commit")
    world.toys.ranks[4].kill()
    await world.say(VerdictKind.FAIL_STOP, 4)
    await world.until_epoch(2)
    assert set(world.job.layout.ranks) == {0, 1, 3, 5, 6, 7}
    await world.steps_are_gapless()
    first, second = await world.plans()
    assert (first.state, second.state) == (PlanState.ABORTED, PlanState.APPLIED)
    assert second.decision is not None
    assert second.decision["from_epoch"] == 0


@pytest.mark.asyncio
async def test_a_death_between_the_commit_and_the_boundary_turns_the_plan_into_a_recovery(world: World) -> None:
    world.toys.ranks[6].hanging.set()
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    await world.until(lambda: world.toys.ranks[0].mailbox.committed_epoch() >= 1, "the commit")
    world.toys.ranks[6].kill()
    await world.say(VerdictKind.FAIL_STOP, 6)
    await world.until_epoch(2)
    assert 6 not in world.job.layout.ranks
    modes = [(plan.plan.mode, plan.state) for plan in await world.plans()]
    assert modes == [(PlanMode.BOUNDARY, PlanState.ABORTED), (PlanMode.RECOVER, PlanState.APPLIED)]


@pytest.mark.asyncio
async def test_a_rank_that_hangs_is_left_behind_and_told_to_leave(world: World) -> None:
    world.toys.ranks[1].hanging.set()
    await world.say(VerdictKind.HANG, 1)
    await world.until_epoch(1)
    assert 1 not in world.job.layout.ranks
    await world.until(lambda: world.toys.ranks[1].mailbox.state.phase == "finished", "the eviction")


@pytest.mark.asyncio
async def test_a_scheduler_killed_after_its_decision_finishes_the_plan_when_it_is_back(world: World) -> None:
    world.toys.ranks[4].hold_rendezvous.set()
    world.toys.ranks[2].kill()
    await world.say(VerdictKind.FAIL_STOP, 2)
    await world.until(lambda: world.toys.ranks[4].mailbox.state.phase == "reshaping", "the commit")
    await world.restart()
    world.toys.ranks[4].hold_rendezvous.clear()
    await world.until_epoch(1)
    (plan,) = await world.plans()
    assert plan.state is PlanState.APPLIED


@pytest.mark.asyncio
async def test_a_scheduler_killed_before_its_decision_plans_again_when_it_is_back(world: World) -> None:
    world.toys.ranks[2].kill()
    # The verdict is durable, and the process dies before it acts on it.
    await world.scheduler.store.save([world.verdict(VerdictKind.JITTER, 2)])
    await world.say(VerdictKind.FAIL_STOP, 2)
    await world.restart()
    await world.until(lambda: 2 not in world.job.layout.ranks, "a plan without rank 2")
    await world.until_epoch(world.job.epoch)
    await world.steps_are_gapless()
    states = [plan.state for plan in await world.plans()]
    assert states.count(PlanState.APPLIED) == 1, states
    (death,) = [one for one in await world.incidents() if one.kind == VerdictKind.FAIL_STOP]
    assert [culprit.rank for culprit in death.culprits] == [2]


@pytest.mark.asyncio
async def test_after_a_restart_the_scheduler_knows_who_is_slow_and_who_is_gone(world: World) -> None:
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    await world.until_epoch(1)
    world.toys.ranks[6].kill()
    await world.say(VerdictKind.FAIL_STOP, 6)
    await world.until_epoch(2)
    before = world.job
    await world.restart()
    after = world.job
    assert (after.epoch, after.layout) == (before.epoch, before.layout)
    assert after.ranks == before.ranks
    assert len(await world.plans()) == 2, "nothing changed, so nothing is planned"


@pytest.mark.asyncio
async def test_after_a_restart_a_slow_device_is_planned_for_by_the_profile_that_was_kept(world: World) -> None:
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    await world.until_epoch(1)
    before = world.job
    await world.restart(profiled=False, profile_seconds=600.0)
    await world.say(VerdictKind.COMPUTE_SLOW, 6, throughput=0.4)
    await world.until_epoch(2)
    plan = (await world.plans())[-1].plan
    assert plan.predicted_seconds > 0.0
    assert world.job.layout != before.layout


@pytest.mark.asyncio
async def test_a_device_that_flipped_before_a_restart_is_not_followed_after_it(world: World) -> None:
    flips = [(VerdictKind.COMPUTE_SLOW, 0.5), (VerdictKind.RECOVERED, 1.0)] * 8
    past = [world.verdict(kind, 3, throughput=throughput) for kind, throughput in flips]
    await world.coordinator.tell(world.toys.job_id, events.VerdictsTaken((*past,)))
    await world.restart()
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    assert await world.plans() == [], "its horizon was halved for each flip"
    await world.say(VerdictKind.COMPUTE_SLOW, 6, throughput=0.5)
    await world.until_epoch(1)
    await world.restart()
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.3)
    assert len(await world.plans()) == 1, "that plan was for both as they were, so this is about rank 3 alone"


@pytest.mark.asyncio
async def test_a_broken_stream_is_reported_and_decides_nothing(world: World) -> None:
    await world.until(lambda: world.toys.ranks[3].server.num_watches > 0, "the stream")
    world.toys.ranks[3].kill()
    await world.until(lambda: world.scheduler.broken == [(3, 0)], "the report")
    assert world.job.epoch == 0
    assert all(info.alive for info in world.job.ranks.values())


@pytest.mark.asyncio
async def test_verdicts_that_come_twice_or_about_an_earlier_process_change_nothing(world: World) -> None:
    world.toys.ranks[5].kill()
    death = world.verdict(VerdictKind.FAIL_STOP, 5)
    await world.coordinator.tell(world.toys.job_id, events.VerdictsTaken((death, death)))
    await world.until_epoch(1)
    newer = world.toys.replace(5)
    await world.register(newer)
    await world.say(VerdictKind.REJOINED, 5, incarnation=1)
    await world.until_epoch(2)
    await world.coordinator.tell(world.toys.job_id, events.VerdictsTaken((death,)))
    await world.say(VerdictKind.FAIL_STOP, 5, incarnation=0)
    assert world.job.epoch == 2
    assert len(await world.plans()) == 2


@pytest.mark.asyncio
async def test_a_rank_that_does_not_answer_a_boundary_plan_lets_nobody_change(world: World) -> None:
    await world.restart(times=FlightTimes(boundary_prepare=1.0))
    world.toys.ranks[6].kill()
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)

    async def aborted() -> bool:
        return any(plan.state is PlanState.ABORTED for plan in await world.plans())

    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await aborted():  # noqa: ASYNC110 - the history has no event to wait for
            await asyncio.sleep(0.02)
    assert world.job.epoch == 0
    assert all(toy.epoch == 0 for toy in world.toys.ranks.values())
    await world.say(VerdictKind.FAIL_STOP, 6)
    await world.until(lambda: world.job.epoch > 0 and 6 not in world.job.layout.ranks, "the recovery")


@pytest.mark.asyncio
async def test_the_effect_of_a_plan_is_written_beside_its_prediction(world: World) -> None:
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    await world.until_epoch(1)
    await world.profile(world.toys.ranks[0].steps + 50, 2.5)
    (plan,) = await world.plans()
    assert plan.state is PlanState.MEASURED
    assert plan.measured_seconds == 2.5


@pytest.mark.asyncio
async def test_watchers_see_the_job_then_verdicts_and_plans_until_it_finishes(world: World) -> None:
    news = world.coordinator.watch(world.toys.job_id)
    assert (await anext(news)) == world.view
    await world.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.5)
    await world.until_epoch(1)
    await world.coordinator.finish_job(world.toys.job_id)
    rest = [item async for item in news]
    states = [item.state for item in rest if hasattr(item, "plan")]
    assert states == [PlanState.PROPOSED, PlanState.COMMITTED, PlanState.APPLIED]
    assert rest[-1].known.state is JobState.FINISHED
