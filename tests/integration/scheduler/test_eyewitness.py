"""Nobody tells the scheduler of a death: Kafka or the detector is away. Real controllers, streams and database."""

from dataclasses import replace

import pytest

from evenkeel.contracts.verdict_ids import verdict_id
from evenkeel.history.vocabulary import PlanMode, PlanState, VerdictKind
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.serving import processes
from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from tests.integration.scheduler.conftest import HOME, World

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def park_all_but(world: World, dead: int) -> None:
    """What survivors do when a connection to the dead one breaks."""
    for rank, toy in world.toys.ranks.items():
        if rank != dead:
            toy.mailbox.interrupt(toy.epoch, leave=False)


async def test_a_death_that_nobody_else_tells_is_recovered_from_and_told_later_counts_once(world: World) -> None:
    await world.until(lambda: all(toy.steps > 2 for toy in world.toys.ranks.values()), "some steps")
    world.toys.ranks[3].kill()
    await park_all_but(world, 3)
    await world.until_epoch(1)
    (incident,) = await world.incidents()
    assert incident.kind == VerdictKind.FAIL_STOP
    assert [culprit.rank for culprit in incident.culprits] == [3]
    (plan,) = await world.plans()
    assert (plan.plan.mode, plan.state) == (PlanMode.RECOVER, PlanState.APPLIED)
    # The detector is heard again: it names the same process, by the id that follows from that.
    verdict = world.verdict(VerdictKind.FAIL_STOP, 3)
    same = replace(verdict, verdict_id=verdict_id(world.toys.job_id, VerdictKind.FAIL_STOP, 3, 0))
    await world.coordinator.tell(world.toys.job_id, events.VerdictsTaken((same,)))
    assert len(await world.incidents()) == 1
    assert len(await world.plans()) == 1
    await world.steps_are_gapless()


async def test_ranks_that_park_though_nobody_is_gone_go_on_in_the_shape_that_they_had(world: World) -> None:
    await world.until(lambda: all(toy.steps > 2 for toy in world.toys.ranks.values()), "some steps")
    # Somebody else's plan, which no other rank has heard of: the next one must go beyond it.
    away = Reshape(job_id="", plan_id="another", epoch=40, mode=ApplyMode.BOUNDARY, to_layout=HOME)
    world.toys.ranks[3].mailbox.commit(Commit(reshape=away, from_epoch=0, from_layout=HOME, sources=HOME.ranks))
    await park_all_but(world, -1)
    await world.until_epoch(41)
    *refused, plan = sorted(await world.plans(), key=lambda one: one.plan.epoch)
    assert [one.state for one in refused] == [PlanState.ABORTED]
    assert (plan.plan.mode, plan.state) == (PlanMode.RECOVER, PlanState.APPLIED)
    assert plan.plan.layout.replicas == HOME.replicas
    assert await world.incidents() == []
    await world.steps_are_gapless()


async def test_a_process_whose_stream_broke_is_left_alone_while_the_others_train(world: World) -> None:
    world.toys.ranks[3].server.stop(grace_seconds=0)
    await world.until(lambda: world.scheduler.broken == [(3, 0)], "the report")
    steps = world.toys.ranks[0].steps
    # Longer than the scheduler's patience and two more looks, at a hundredth of a second each.
    await world.until(lambda: world.toys.ranks[0].steps > steps + 300, "three seconds of training")
    assert await world.incidents() == []
    assert world.job.epoch == 0


async def test_while_kafka_is_away_a_broken_stream_is_opened_again_and_its_next_break_is_told_too(world: World) -> None:
    scheduler, toy = world.scheduler, world.toys.ranks[3]
    await world.until(lambda: toy.server.num_watches == 1, "the stream")
    scheduler.kafka.clear()
    toy.server.stop(grace_seconds=0)
    await world.until(lambda: scheduler.broken == [(3, 0)], "the report")
    again = ControlServer(toy.mailbox, job_id=world.toys.job_id, job_token=world.toys.token, port=toy.server.port)
    toy.server = again
    again.start()
    await world.until(lambda: again.num_watches == 1, "a stream to the same process")
    scheduler.kafka.set()
    again.stop(grace_seconds=0)
    await world.until(lambda: scheduler.broken == [(3, 0), (3, 0)], "the report of the second break")


async def test_a_rank_that_hangs_is_told_to_leave_whenever_it_can_be_reached_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_EVICTION_ATTEMPTS", 0)  # minutes have passed
    toy = world.toys.ranks[3]
    toy.server.stop(grace_seconds=0)
    await world.say(VerdictKind.HANG, 3)
    await world.until(lambda: 3 not in world.job.layout.ranks, "a layout without rank 3")
    assert not toy.mailbox.leaving()
    toy.server = ControlServer(toy.mailbox, job_id=world.toys.job_id, job_token=world.toys.token, port=toy.server.port)
    toy.server.start()
    await world.until(toy.mailbox.leaving, "the word that it is to leave")
