"""What the history holds when the scheduler dies at the worst moment, or the job ends at one: nothing is left open."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from evenkeel.history import reads
from evenkeel.history.errors import FinishedJobError, JobIdUsedError, StaleStateError, UnknownRankError
from evenkeel.history.records import JobRecord, JobStateRecord, PlanEventRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import JobState, PlanState, VerdictKind
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.services.scheduler.adapters.api.codec import job_to_proto
from evenkeel.services.scheduler.adapters.store.job_document import restored_job, saved_state
from evenkeel.services.scheduler.domain.profiles import JobEnded
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.machine import on
from evenkeel.services.scheduler.jobs.rules import Rules
from evenkeel.services.scheduler.jobs.steps import JobChange
from tests.integration.scheduler.conftest import World, job_record
from tests.integration.scheduler.toy_job import ToyRank

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def write_and_crash(world: World, verdict: VerdictRecord) -> None:
    """The scheduler dies when a verdict and its incident are in the history, before it does anything about them."""
    await world.scheduler.crash()
    stored = await world.in_history()
    assert stored.state is not None
    job = restored_job(stored, "salt")
    moment = steps.Moment(at=verdict.decided_at, states={}, rules=Rules())
    step = on(job, events.VerdictsTaken((verdict,)), moment)
    await world.scheduler.store.save([*step.save, saved_state(step.job, job, stored.state.version + 1)])
    await world.restart()


def state_of(world: World, job_id: str) -> JobState | None:
    view = world.coordinator.job(job_id)
    return None if view is None else view.known.state


async def state_in_history(world: World) -> JobState:
    known = await world.scheduler.store.read(reads.get_job, world.toys.job_id)
    assert known is not None
    return known.state


async def test_after_a_crash_the_plan_names_its_incident_and_the_standstill_is_charged_from_its_beginning(
    world: World,
) -> None:
    world.toys.ranks[6].kill()
    verdict = world.verdict(VerdictKind.FAIL_STOP, 6)
    await write_and_crash(world, replace(verdict, decided_at=verdict.decided_at - timedelta(seconds=30)))
    await world.until_epoch(1)
    (plan,) = await world.plans()
    (incident,) = await world.incidents()
    assert (plan.plan.incident_id, incident.plan_ids) == (incident.incident_id, (plan.plan.plan_id,))
    assert incident.lost_seconds >= 30.0
    assert await state_in_history(world) is JobState.RUNNING


async def test_a_decision_whose_write_outlives_the_scheduler_is_refused_when_another_one_goes_on_with_the_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, may_go = world.scheduler.store, asyncio.Event()
    save, late = before.save, list[BaseException | None]()

    async def held_up(changes: Sequence[JobChange]) -> tuple[bool, ...]:
        decides = any(isinstance(one, PlanEventRecord) and one.state is PlanState.COMMITTED for one in changes)
        if not decides:
            return await save(changes)
        late.append(None)
        # What is on its way to the database goes on there when its sender dies.
        return await asyncio.shield(asyncio.ensure_future(arrives_late(changes)))

    async def arrives_late(changes: Sequence[JobChange]) -> tuple[bool, ...]:
        await may_go.wait()
        try:
            return await save(changes)
        except StaleStateError as error:
            late[0] = error
            raise

    monkeypatch.setattr(before, "save", held_up)
    await world.say(VerdictKind.COMPUTE_SLOW, 2, throughput=0.4)
    await world.until(lambda: late, "a decision on its way to the history")
    await world.restart()
    may_go.set()
    await world.until(lambda: late[0] is not None, "the word that it comes too late")
    await world.until_epoch(1)
    dropped, *_, applied = await world.plans()
    assert (dropped.state, applied.state) == (PlanState.ABORTED, PlanState.APPLIED)
    assert (await world.in_history()).layouts.keys() == {0, applied.plan.epoch}


async def test_a_process_that_hung_before_a_crash_is_told_to_leave_after_it(world: World) -> None:
    world.toys.ranks[3].hanging.set()
    await write_and_crash(world, world.verdict(VerdictKind.HANG, 3))
    await world.until(world.toys.ranks[3].mailbox.leaving, "the word to leave")
    await world.until_epoch(1)


async def test_a_decided_plan_that_counts_on_a_process_which_died_before_the_crash_is_replaced_after_it(
    world: World,
) -> None:
    for toy in world.toys.ranks.values():
        toy.hold_rendezvous.set()
    world.toys.ranks[6].kill()
    await world.say(VerdictKind.FAIL_STOP, 6)
    others = [toy for toy in world.toys.ranks.values() if toy.rank != 6]
    await world.until(lambda: all(toy.mailbox.committed_epoch() == 1 for toy in others), "the commit everywhere")
    world.toys.ranks[3].kill()
    await write_and_crash(world, world.verdict(VerdictKind.FAIL_STOP, 3))
    for toy in others:
        toy.hold_rendezvous.clear()
    await world.until_epoch(2)
    assert {3, 6}.isdisjoint(world.job.layout.ranks)
    assert [plan.state for plan in await world.plans()] == [PlanState.ABORTED, PlanState.APPLIED]


async def test_a_death_that_is_told_after_a_crash_counts_though_the_next_process_had_registered_before_it(
    world: World,
) -> None:
    world.toys.ranks[6].kill()
    await world.register(world.toys.replace(6))
    await world.restart()
    await world.say(VerdictKind.FAIL_STOP, 6)
    await world.say(VerdictKind.REJOINED, 6, incarnation=1)
    await world.until(lambda: world.job.ranks[6].incarnation == 1 and world.job.epoch == 2, "the return of rank 6")
    (incident,) = await world.incidents()
    assert incident.resolved_at is not None
    await world.steps_are_gapless()


async def test_a_record_that_took_long_says_nothing_of_the_job_that_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, written, is_over = world.scheduler.store.save, asyncio.Event(), asyncio.Event()

    async def save_slowly(changes: Sequence[JobChange]) -> tuple[bool, ...]:
        if not any(isinstance(change, JobStateRecord) and change.state is JobState.RESHAPING for change in changes):
            return await save(changes)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), 1.0)
        outcome = await save(changes)
        written.set()
        return outcome

    monkeypatch.setattr(world.scheduler.store, "save", save_slowly)
    for rank in (6, 3):
        world.toys.ranks[rank].kill()
        await world.say(VerdictKind.FAIL_STOP, rank)
    await world.until_epoch(2)
    is_over.set()
    await written.wait()
    assert [plan.state for plan in await world.plans()] == [PlanState.ABORTED, PlanState.APPLIED]
    assert await state_in_history(world) is JobState.RUNNING


async def test_a_state_that_ended_with_the_crash_is_not_what_the_history_goes_on_to_say(world: World) -> None:
    await write_and_crash(world, world.verdict(VerdictKind.JITTER, 3))
    assert (world.job.state, await state_in_history(world)) == (JobState.RUNNING, JobState.RUNNING)


async def test_a_decided_plan_ends_with_its_job(world: World) -> None:
    for toy in world.toys.ranks.values():
        toy.hold_rendezvous.set()
    await world.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    await world.until(lambda: 1 in [toy.mailbox.committed_epoch() for toy in world.toys.ranks.values()], "a commit")
    await world.coordinator.finish_job(world.toys.job_id)
    (plan,) = await world.plans()
    assert (plan.state, plan.detail) == (PlanState.ABORTED, "the job finished")
    assert plan.decision is not None
    assert await state_in_history(world) is JobState.FINISHED


async def test_a_job_whose_end_meets_a_database_that_is_away_ends_when_it_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, outages = world.scheduler.store.save, [OSError("away"), OSError("away")]

    async def save_later(changes: Sequence[JobChange]) -> tuple[bool, ...]:
        if outages and any(isinstance(one, JobStateRecord) and one.state is JobState.FINISHED for one in changes):
            raise outages.pop()
        return await save(changes)

    for toy in world.toys.ranks.values():
        toy.hold_rendezvous.set()
    world.toys.ranks[6].kill()
    await world.say_and_plan(VerdictKind.FAIL_STOP, 6)
    monkeypatch.setattr(world.scheduler.store, "save", save_later)
    await world.coordinator.finish_job(world.toys.job_id)
    assert (await state_in_history(world), outages) == (JobState.FINISHED, [])
    assert [plan.state for plan in await world.plans()] == [PlanState.ABORTED]
    assert world.coordinator.job(world.toys.job_id) is None


async def test_a_job_that_ended_while_nobody_listened_is_finished_once_the_detector_says_so(world: World) -> None:
    for toy in world.toys.ranks.values():
        toy.kill()
    await world.restart(ended_seconds=0.05)
    await world.coordinator.tell(world.toys.job_id, JobEnded(job_id=world.toys.job_id))
    await world.until(lambda: world.coordinator.job(world.toys.job_id) is None, "the end of the job")
    assert await state_in_history(world) is JobState.FINISHED


async def test_a_rank_and_a_registration_of_a_finished_job_are_refused_with_the_reason(world: World) -> None:
    await world.coordinator.finish_job(world.toys.job_id)
    with pytest.raises(FinishedJobError, match="has finished; register another one under a new id"):
        await world.register(world.toys.ranks[0])
    job = job_record(world.toys)
    for again in (job, replace(job, job_token="a token made up anew")):
        with pytest.raises(JobIdUsedError, match="has finished and stays in the history; choose another job id"):
            await world.coordinator.register_job(again)


async def test_a_process_that_registers_while_its_job_ends_is_refused_and_not_watched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = world.toys.ranks[0]
    newer = world.toys.replace(0)
    save, ends, may_end = world.scheduler.store.save, asyncio.Event(), asyncio.Event()

    async def save_slowly(changes: Sequence[JobChange]) -> tuple[bool, ...]:
        if any(isinstance(one, JobStateRecord) and one.state is JobState.FINISHED for one in changes):
            ends.set()
            await may_end.wait()
        return await save(changes)

    monkeypatch.setattr(world.scheduler.store, "save", save_slowly)
    finishing = asyncio.create_task(world.coordinator.finish_job(world.toys.job_id))
    await ends.wait()
    registering = asyncio.create_task(world.register(newer))
    await asyncio.wait([registering], timeout=0)
    may_end.set()
    await finishing
    with pytest.raises(FinishedJobError):
        await registering
    await world.until(lambda: not toy.server.num_watches, "the end of the stream to the first process")
    assert newer.server.num_watches == 0
    toy.kill()


async def test_a_job_that_the_planner_trips_over_stands_alone(world: World) -> None:
    free = BlockCost(forward_flops_per_token=0.0, forward_flops_per_squared_length=0.0)
    odd = replace(world.verdict(VerdictKind.FAIL_STOP, 1), verdict_id="odd-verdict", job_id=f"{world.toys.job_id}-odd")
    await world.coordinator.register_job(
        JobRecord(
            job_id=odd.job_id,
            name="costs nothing",
            model=ModelSpec(blocks=(free,) * world.toys.home.num_blocks),
            layout=world.toys.home,
            registered_at=odd.decided_at,
            job_token=world.toys.token,
        )
    )
    for rank in world.toys.home.ranks:
        record = RankRecord(
            job_id=odd.job_id,
            rank=rank,
            incarnation=0,
            node="node-0",
            device=f"gpu-{rank}",
            address=f"127.0.0.1:{rank + 1}",
            process_id=1,
            registered_at=odd.decided_at,
        )
        await world.coordinator.register_ranks(odd.job_id, [record])
    await world.coordinator.tell(odd.job_id, events.VerdictsTaken((odd,)))
    await world.until(lambda: state_of(world, odd.job_id) is JobState.STUCK, "the word that it is stuck")
    await world.restart()
    world.toys.ranks[6].kill()
    await world.say(VerdictKind.FAIL_STOP, 6)
    await world.until_epoch(1)


async def test_what_a_slow_device_has_cost_is_in_the_history_while_it_costs_and_survives_a_restart(
    world: World,
) -> None:
    await world.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.99)
    await world.profile(10, 3.0)
    (incident,) = await world.incidents()
    assert incident.lost_seconds > 1.0
    await world.restart()
    await world.coordinator.finish_job(world.toys.job_id)
    (ended,) = await world.incidents()
    assert ended.resolved_at is not None
    assert ended.lost_seconds == incident.lost_seconds


async def test_a_rank_that_its_job_does_not_have_is_refused_with_what_to_do(world: World) -> None:
    stray = ToyRank(world.toys, len(world.toys.ranks))
    with pytest.raises(UnknownRankError, match="has no rank 8: it was registered with 8, 0 to 7; start it with these"):
        await world.register(stray)
    await world.restart()
    assert [*world.job.ranks] == [*world.toys.ranks]


async def test_only_processes_that_have_registered_are_counted_as_alive(world: World) -> None:
    job = replace(job_record(world.toys), job_id="nobody-yet")
    assert not any(rank.alive for rank in job_to_proto(await world.coordinator.register_job(job)).ranks)
    assert all(rank.alive for rank in job_to_proto(world.view).ranks)
