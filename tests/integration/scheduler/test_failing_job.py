"""What the work for one job raises ends this job's work for a moment, and no other job's."""

import asyncio
import contextlib
import random
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from evenkeel.detector.v1 import detector_pb2
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from contracts.topics import PROFILES, VERDICTS
from history.records import (
    IncidentEventRecord,
    IncidentState,
    PlanEventRecord,
    PlanRecord,
    RestartRecord,
    VerdictRecord,
)
from history.vocabulary import JobState, PlanState, VerdictKind
from services.common.kafka import ConsumeLoop, DeadLetters, KafkaClientConfig, KafkaConsumer, KafkaProducer
from services.common.kafka.dead_letters import SUFFIX
from services.common.kafka.loop import LoopConfig
from services.common.metrics import KafkaMetrics, create_registry
from services.scheduler.adapters.findings import DECODERS
from services.scheduler.adapters.intake import Intake
from services.scheduler.adapters.store import Change, Store
from services.scheduler.faults import JobAwayError
from tests.integration.scheduler.conftest import (
    HOME,
    PATIENT_SECONDS,
    Scheduler,
    World,
    job_record,
    new_scheduler,
    patient_engine,
)
from tests.integration.scheduler.test_crashes import goes_on
from tests.integration.scheduler.test_service import (
    DEADLINE_SECONDS,
    death,
    read_until,
    register,
    send,
    service,
    until_without,
)
from tests.integration.scheduler.toy_job import ToyJob

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

_MOST_TRIPS = 6
_DECIDED = (PlanState.COMMITTED, PlanState.APPLIED, PlanState.MEASURED)


class TrippingStore(Store):
    """The real store, over which the work for one job trips: at writes, or at what it reads at a start.

    Attributes:
        trips_before: Raises before it writes changes that are such.
        trips_after: Raises when it has written them.
        forgets_layouts_of: The job whose history it reads without layouts.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine, timeout_seconds=PATIENT_SECONDS)
        self.trips_before: Callable[[Change], bool] = lambda _: False
        self.trips_after: Callable[[Change], bool] = lambda _: False
        self.forgets_layouts_of = ""

    async def save(self, changes: Sequence[Change]) -> tuple[bool, ...]:
        if any(map(self.trips_before, changes)):
            raise ArithmeticError("before it was written")
        saved = await super().save(changes)
        if any(map(self.trips_after, changes)):
            raise ArithmeticError("after it was written")
        return saved

    async def load_job(self, job_id: str) -> RestartRecord | None:
        record = await super().load_job(job_id)
        return replace(record, layouts={}) if record is not None and job_id == self.forgets_layouts_of else record


@pytest.fixture
def pair() -> Iterator[tuple[ToyJob, ToyJob]]:
    jobs = ToyJob(f"bad-{uuid.uuid4().hex[:8]}", HOME), ToyJob(f"good-{uuid.uuid4().hex[:8]}", HOME)
    for job in jobs:
        job.start()
    yield jobs
    for job in jobs:
        job.stop()


@pytest_asyncio.fixture
async def engine(fresh_database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = patient_engine(fresh_database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def store(engine: AsyncEngine) -> TrippingStore:
    return TrippingStore(engine)


@pytest_asyncio.fixture
async def worlds(
    engine: AsyncEngine, store: TrippingStore, pair: tuple[ToyJob, ToyJob]
) -> AsyncIterator[tuple[World, World]]:
    """Two jobs of one scheduler; the store is meant to trip over the first."""
    scheduler = new_scheduler(engine, store=store)
    bad, good = (World(engine=engine, toys=toys, scheduler=scheduler) for toys in pair)
    for world in (bad, good):
        await world.coordinator.register_job(job_record(world.toys))
        for toy in world.toys.ranks.values():
            await world.register(toy)
        await world.profile(5, 1.7)
    yield bad, good
    await bad.scheduler.crash()


async def start_again(store: Store, *worlds: World) -> Scheduler:
    """kill -9 of the scheduler of some jobs, and a new one."""
    await worlds[0].scheduler.crash()
    scheduler = new_scheduler(worlds[0].engine, store=store)
    for world in worlds:
        world.scheduler = scheduler
    assert await scheduler.coordinator.load() == len(worlds)
    return scheduler


@contextlib.asynccontextmanager
async def consuming(kafka: str, scheduler: Scheduler, group: str) -> AsyncIterator[None]:
    """What ``services.scheduler.main`` puts together to read Kafka."""
    metrics = KafkaMetrics(create_registry())
    config = KafkaClientConfig(bootstrap_servers=kafka, client_id=group, security={})
    producer = KafkaProducer(config, metrics)
    await producer.start()
    dead_letters = DeadLetters(producer, metrics, group=group)
    loop = ConsumeLoop(
        KafkaConsumer(config, topics=list(DECODERS), group=group),
        Intake(scheduler.coordinator, bury=dead_letters.bury),
        decoders=DECODERS,
        dead_letters=dead_letters,
        metrics=metrics,
        config=LoopConfig(checkpoint_seconds=0.05),
    )
    running = asyncio.create_task(loop.run())
    try:
        yield
        assert not running.done(), "the loop ended"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await producer.stop()


def verdicts_of(job_id: str) -> Callable[[Change], bool]:
    return lambda change: isinstance(change, VerdictRecord) and change.job_id == job_id


async def test_a_verdict_at_which_a_job_fails_twice_is_set_aside_and_other_jobs_are_repaired_meanwhile(
    worlds: tuple[World, World], store: TrippingStore, kafka_bootstrap: str
) -> None:
    bad, good = worlds
    store.trips_before = verdicts_of(bad.toys.job_id)
    async with consuming(kafka_bootstrap, bad.scheduler, f"test-{uuid.uuid4().hex}"):
        for world in worlds:
            world.toys.ranks[3].kill()
        told = death(bad.toys.job_id, 3)
        await send(kafka_bootstrap, VERDICTS.name, bad.toys.job_id, told)
        await send(kafka_bootstrap, VERDICTS.name, good.toys.job_id, death(good.toys.job_id, 3))
        await good.until(lambda: 3 not in good.job.layout.ranks, "the repair of the job that is well")
        assert 3 in bad.job.layout.ranks
        (aside,) = await read_until(kafka_bootstrap, VERDICTS.name + SUFFIX, bad.toys.job_id, bool)
        assert detector_pb2.Verdict.FromString(aside) == told
        assert bad.scheduler.num_failures("verdict") == 2
        store.trips_before = lambda _: False
        await send(kafka_bootstrap, VERDICTS.name, bad.toys.job_id, death(bad.toys.job_id, 3))
        await bad.until(lambda: 3 not in bad.job.layout.ranks, "the repair of the job that failed")
    for world in worlds:
        await world.steps_are_gapless()


async def test_a_verdict_at_which_a_job_failed_once_is_taken_when_it_has_begun_anew(
    worlds: tuple[World, World], store: TrippingStore, kafka_bootstrap: str
) -> None:
    bad, good = worlds
    is_one = verdicts_of(bad.toys.job_id)
    store.trips_before = lambda change: is_one(change) and not bad.scheduler.num_failures("verdict")
    news = bad.coordinator.watch(bad.toys.job_id)
    await anext(news)
    async with consuming(kafka_bootstrap, bad.scheduler, f"test-{uuid.uuid4().hex}"):
        bad.toys.ranks[3].kill()
        await send(kafka_bootstrap, VERDICTS.name, bad.toys.job_id, death(bad.toys.job_id, 3))
        await bad.until(lambda: 3 not in bad.job.layout.ranks, "the repair")
    assert bad.scheduler.num_failures("verdict") == 1
    assert good.job.epoch == 0
    (plan,) = await bad.plans()
    assert plan.plan.predicted_seconds > 0, "the job's profile is known again"
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for told in news:
            if isinstance(told, VerdictRecord):
                break
    await bad.steps_are_gapless()


async def test_a_verdict_that_waits_for_a_job_is_read_again_by_the_scheduler_after_a_crash(
    worlds: tuple[World, World], store: TrippingStore, kafka_bootstrap: str
) -> None:
    bad, good = worlds
    group = f"test-{uuid.uuid4().hex}"
    store.trips_before = verdicts_of(bad.toys.job_id)
    store.forgets_layouts_of = bad.toys.job_id
    async with consuming(kafka_bootstrap, bad.scheduler, group):
        for world in worlds:
            world.toys.ranks[3].kill()
            await send(kafka_bootstrap, VERDICTS.name, world.toys.job_id, death(world.toys.job_id, 3))
        await good.until(lambda: 3 not in good.job.layout.ranks, "the repair of the job that is well")
        await bad.until(lambda: bad.scheduler.num_failures("begin"), "a failure to begin anew")
    again = await start_again(Store(bad.engine, timeout_seconds=PATIENT_SECONDS), bad, good)
    async with consuming(kafka_bootstrap, again, group):
        await bad.until(lambda: 3 not in bad.job.layout.ranks, "the repair of the job that failed")
    (plan,) = await good.plans()
    assert plan.state is PlanState.APPLIED, "what is read twice counts once"


@pytest.mark.parametrize(
    ("fault", "states"),
    [
        ("while it is proposed", [PlanState.APPLIED]),
        ("before it is decided", [PlanState.ABORTED, PlanState.APPLIED]),
        ("when it is decided", [PlanState.APPLIED]),
    ],
)
async def test_a_plan_that_fails_in_the_middle_of_its_flight_is_settled_when_its_job_has_begun_anew(
    worlds: tuple[World, World], store: TrippingStore, fault: str, states: list[PlanState]
) -> None:
    bad, good = worlds

    def proposes(change: Change) -> bool:
        of_it = isinstance(change, PlanRecord) and change.job_id == bad.toys.job_id
        return of_it and not bad.scheduler.num_failures("task")

    def decides(change: Change) -> bool:
        is_decision = isinstance(change, PlanEventRecord) and change.state is PlanState.COMMITTED
        return is_decision and bad.toys.job_id in change.plan_id and not bad.scheduler.num_failures("task")

    if fault == "when it is decided":
        store.trips_after = decides
    else:
        store.trips_before = proposes if fault == "while it is proposed" else decides
    for world in worlds:
        world.toys.ranks[3].kill()
        await world.say(VerdictKind.FAIL_STOP, 3)
    for world in worlds:
        await world.until(lambda world=world: 3 not in world.job.layout.ranks, "the repair")  # type: ignore[misc]
        await world.until(lambda world=world: world.job.state is JobState.RUNNING, "a job that runs")  # type: ignore[misc]
        await world.steps_are_gapless()
    assert bad.scheduler.num_failures("task") == 1
    assert [plan.state for plan in await bad.plans()] == states
    epochs = [plan.plan.epoch for plan in await bad.plans()]
    assert epochs == sorted(set(epochs)), "each epoch is one plan's"
    (plan,) = await good.plans()
    assert plan.state is PlanState.APPLIED


async def patiently(world: World, offer: Callable[[], Awaitable[None]]) -> None:
    """As Kafka and launchers do: what a job could not take in is offered again when it is back."""
    while True:
        await world.until(lambda: world.coordinator.is_ready(world.toys.job_id), "the job that failed")
        with contextlib.suppress(JobAwayError):
            await offer()
            return


@pytest.mark.parametrize("seed", range(2))
async def test_failing_anywhere_on_the_way_of_its_plans_a_job_goes_on_and_no_step_is_lost_or_doubled(
    worlds: tuple[World, World], store: TrippingStore, seed: int
) -> None:
    bad, good = worlds
    moments, trips = random.Random(seed), 0

    def now_and_then(_: Change) -> bool:
        nonlocal trips
        is_now = trips < _MOST_TRIPS and moments.random() < 0.2
        trips += is_now
        return is_now

    async def say(kind: VerdictKind, rank: int, **more: float) -> None:
        verdict = bad.verdict(kind, rank, incarnation=bad.toys.ranks[rank].incarnation, **more)
        await patiently(bad, lambda: bad.coordinator.take_verdicts(bad.toys.job_id, [verdict]))

    store.trips_before = store.trips_after = now_and_then
    await say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    await goes_on(bad)
    bad.toys.ranks[6].kill()
    await say(VerdictKind.FAIL_STOP, 6)
    await bad.until(lambda: 6 not in bad.job.layout.ranks, "a layout without rank 6")
    await goes_on(bad)
    newer = bad.toys.replace(6)
    await patiently(bad, lambda: bad.register(newer))
    await say(VerdictKind.REJOINED, 6)
    await bad.until(lambda: 6 in bad.job.layout.ranks, "rank 6 back in its place")
    await goes_on(bad)
    await bad.steps_are_gapless()
    assert trips, "it was meant to fail"
    decided = [plan.plan.epoch for plan in await bad.plans() if plan.state in _DECIDED]
    assert decided == sorted(set(decided)), "each epoch is one plan's"
    assert good.job.epoch == 0
    await goes_on(good)


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
    await good.until(lambda: scheduler.coordinator.is_ready(bad.toys.job_id), "the job that failed")
    bad.toys.ranks[3].kill()
    await bad.say(VerdictKind.FAIL_STOP, 3)
    await bad.until(lambda: 3 not in bad.job.layout.ranks, "the repair of the job that failed")


async def test_a_job_that_cannot_go_on_from_its_history_can_be_finished(
    worlds: tuple[World, World], store: TrippingStore
) -> None:
    bad, good = worlds
    await bad.say(VerdictKind.FAIL_STOP, 3)
    store.forgets_layouts_of = bad.toys.job_id
    scheduler = await start_again(store, bad, good)
    await scheduler.coordinator.finish_job(bad.toys.job_id)
    known = await store.get_job(bad.toys.job_id)
    assert known is not None
    assert known.state is JobState.FINISHED
    (incident,) = await incidents_of(store, bad)
    assert incident.resolved_at is not None
    assert not {plan.state for plan in await bad.plans()} & {PlanState.PROPOSED, PlanState.COMMITTED}
    store.forgets_layouts_of = ""
    assert await start_again(store, good) is good.scheduler


async def test_a_job_whose_open_incidents_cannot_be_settled_can_be_finished_all_the_same(
    worlds: tuple[World, World], store: TrippingStore
) -> None:
    bad, good = worlds
    await bad.say(VerdictKind.FAIL_STOP, 3)
    store.forgets_layouts_of = bad.toys.job_id
    scheduler = await start_again(store, bad, good)
    store.trips_before = lambda change: isinstance(change, IncidentEventRecord)
    await scheduler.coordinator.finish_job(bad.toys.job_id)
    known = await store.get_job(bad.toys.job_id)
    assert known is not None
    assert known.state is JobState.FINISHED
    (incident,) = await incidents_of(store, bad)
    assert incident.resolved_at is None


async def incidents_of(store: Store, world: World) -> tuple[IncidentState, ...]:
    page = await store.list_incidents(job_id=world.toys.job_id, page_size=10, page_token="")
    return page.items


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
