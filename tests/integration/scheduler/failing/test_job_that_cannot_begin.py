"""A job that cannot go on from its history: tried again, finished all the same, and in nobody else's way."""

import asyncio
import signal
from pathlib import Path

import grpc
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.contracts.topics import PROFILES, VERDICTS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.history import reads
from evenkeel.history.records import IncidentState, PlanRecord
from evenkeel.history.vocabulary import JobState, PlanState, VerdictKind
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.serving.faults import JobAwayError
from tests.integration.scheduler.conftest import (
    Scheduler,
    World,
)
from tests.integration.scheduler.failing.restarts import start_again
from tests.integration.scheduler.failing.tripping_store import TrippingStore
from tests.integration.scheduler.test_service import (
    DEADLINE_SECONDS,
    death,
    register,
    send,
    service,
    until_without,
)
from tests.integration.scheduler.toy_job import ToyJob

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def test_a_job_that_cannot_go_on_from_its_history_is_tried_again_while_others_are_served(
    worlds: tuple[World, World], store: TrippingStore
) -> None:
    bad, good = worlds
    store.forgets_layouts_of = bad.toys.job_id
    scheduler = await start_again(store, bad, good)
    assert scheduler.coordinator.job(bad.toys.job_id) is None
    good.toys.ranks[3].kill()
    await good.say(VerdictKind.FAIL_STOP, 3)
    await good.until(lambda: 3 not in good.job.layout.ranks, "the repair of the job that is well")
    with pytest.raises(JobAwayError):
        await bad.register(bad.toys.ranks[0])
    await good.until(lambda: scheduler.num_failures("begin") > 1, "a second try")
    store.forgets_layouts_of = ""
    await good.until(lambda: scheduler.is_ready(bad.toys.job_id), "the job that failed")
    bad.toys.ranks[3].kill()
    await bad.say(VerdictKind.FAIL_STOP, 3)
    await bad.until(lambda: 3 not in bad.job.layout.ranks, "the repair of the job that failed")


async def test_a_job_that_begins_anew_can_be_finished_and_what_is_open_in_its_history_ends_with_it(
    worlds: tuple[World, World], store: TrippingStore
) -> None:
    bad, _ = worlds
    store.trips_before = lambda change: isinstance(change, PlanRecord) and change.job_id == bad.toys.job_id
    await bad.say(VerdictKind.FAIL_STOP, 3)
    await bad.until(lambda: not bad.scheduler.is_ready(bad.toys.job_id), "the failure of the job")
    incident = await finished(bad.scheduler, store, bad)
    assert incident.resolved_at is not None
    assert not {plan.state for plan in await bad.plans()} & {PlanState.PROPOSED, PlanState.COMMITTED}


async def test_a_job_whose_history_cannot_be_read_can_be_finished_though_what_is_open_in_it_stays_so(
    worlds: tuple[World, World], store: TrippingStore
) -> None:
    bad, good = worlds
    await bad.say_and_plan(VerdictKind.FAIL_STOP, 3)
    store.forgets_layouts_of = bad.toys.job_id
    scheduler = await start_again(store, bad, good)
    incident = await finished(scheduler, store, bad)
    assert incident.resolved_at is None
    store.forgets_layouts_of = ""
    assert await start_again(store, good) is good.scheduler


async def finished(scheduler: Scheduler, store: Store, world: World) -> IncidentState:
    """Finishes the job and gives its one incident."""
    await scheduler.coordinator.finish_job(world.toys.job_id)
    known = await store.read(reads.get_job, world.toys.job_id)
    assert known is not None
    assert known.state is JobState.FINISHED
    page = await store.read(reads.list_incidents, job_id=world.toys.job_id, page_size=10, page_token="")
    (incident,) = page.items
    return incident


async def set_layouts(engine: AsyncEngine, job_id: str, layout: str) -> None:
    """What no service may do to a history: change it."""
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        statement = text("UPDATE job_layouts SET layout = cast(:layout AS jsonb) WHERE job_id = :job_id")
        await connection.execute(statement, {"layout": layout, "job_id": job_id})


async def test_the_service_starts_with_a_job_whose_history_cannot_be_read_and_takes_it_up_when_it_can(
    pair: tuple[ToyJob, ToyJob], engine: AsyncEngine, kafka_bootstrap: str, fresh_database_url: str, tmp_path: Path
) -> None:
    bad, good = pair
    async with (
        service(kafka_bootstrap, fresh_database_url, tmp_path) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        for toys in pair:
            await register(scheduler_pb2_grpc.FleetServiceStub(channel), toys)
            profile = detector_pb2.Profile(
                job_id=toys.job_id, iteration=5, seconds_per_flop=2e-10, tokens=1024, sum_of_squares=1e5
            )
            await send(kafka_bootstrap, PROFILES.name, toys.job_id, profile)
    async with engine.connect() as connection:
        layout = await connection.scalar(
            text("SELECT layout::text FROM job_layouts WHERE job_id = :job_id"), {"job_id": bad.job_id}
        )
    await set_layouts(engine, bad.job_id, "{}")
    async with service(kafka_bootstrap, fresh_database_url, tmp_path) as (process, _):
        process.send_signal(signal.SIGTERM)  # while the job waits to begin anew
        assert await asyncio.wait_for(process.wait(), DEADLINE_SECONDS) == 0
    async with (
        service(kafka_bootstrap, fresh_database_url, tmp_path) as (process, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub = scheduler_pb2_grpc.FleetServiceStub(channel)
        for toys in (bad, good):
            toys.ranks[3].kill()
            await send(kafka_bootstrap, VERDICTS.name, toys.job_id, death(toys.job_id, 3))
        await until_without(stub, good, 3)
        await set_layouts(engine, bad.job_id, str(layout))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while bad.ranks[0].layout is None or 3 in bad.ranks[0].layout.ranks:
                assert process.returncode is None, "the scheduler ended"
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), DEADLINE_SECONDS) == 0
