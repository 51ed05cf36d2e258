"""What the work for one job raises ends this job's work for a moment, and no other job's."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from evenkeel.contracts.topics import VERDICTS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.records import (
    PlanEventRecord,
    PlanRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import JobState, PlanState, VerdictKind
from evenkeel.services.common.kafka import (
    ConsumeLoop,
    DeadLetters,
    KafkaClientConfig,
    KafkaConsumer,
    KafkaProducer,
    LoopConfig,
)
from evenkeel.services.common.kafka.dead_letters import SUFFIX
from evenkeel.services.common.metrics import KafkaMetrics, create_registry
from evenkeel.services.common.worker import Worker
from evenkeel.services.scheduler.adapters.findings import DECODERS
from evenkeel.services.scheduler.adapters.intake import Intake
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.jobs.steps import JobChange
from tests.integration.scheduler.conftest import (
    PATIENT_SECONDS,
    Scheduler,
    World,
)
from tests.integration.scheduler.failing.restarts import start_again
from tests.integration.scheduler.failing.tripping_store import TrippingStore
from tests.integration.scheduler.kept.test_crashes import goes_on
from tests.integration.scheduler.test_service import (
    DEADLINE_SECONDS,
    death,
    read_until,
    send,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

_MOST_TRIPS = 6
_DECIDED = (PlanState.COMMITTED, PlanState.APPLIED, PlanState.MEASURED)


@contextlib.asynccontextmanager
async def consuming(kafka: str, scheduler: Scheduler, group: str) -> AsyncIterator[None]:
    """What ``evenkeel.services.scheduler.main`` puts together to read Kafka."""
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
        worker=Worker(),
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


def verdicts_of(job_id: str) -> Callable[[JobChange], bool]:
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

    def proposes(change: JobChange) -> bool:
        of_it = isinstance(change, PlanRecord) and change.job_id == bad.toys.job_id
        return of_it and not bad.scheduler.num_failures("task")

    def decides(change: JobChange) -> bool:
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


@pytest.mark.parametrize("seed", range(2))
async def test_failing_anywhere_on_the_way_of_its_plans_a_job_goes_on_and_no_step_is_lost_or_doubled(
    worlds: tuple[World, World], store: TrippingStore, seed: int
) -> None:
    bad, good = worlds
    moments, trips = random.Random(seed), 0

    def now_and_then(_: JobChange) -> bool:
        nonlocal trips
        is_now = trips < _MOST_TRIPS and moments.random() < 0.2
        trips += is_now
        return is_now

    async def say(kind: VerdictKind, rank: int, **more: float) -> None:
        verdict = bad.verdict(kind, rank, incarnation=bad.toys.ranks[rank].incarnation, **more)
        await bad.patiently(lambda: bad.coordinator.tell(bad.toys.job_id, events.VerdictsTaken((verdict,))))

    store.trips_before = store.trips_after = now_and_then
    await say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    await goes_on(bad)
    bad.toys.ranks[6].kill()
    await say(VerdictKind.FAIL_STOP, 6)
    await bad.until(lambda: 6 not in bad.job.layout.ranks, "a layout without rank 6")
    await goes_on(bad)
    newer = bad.toys.replace(6)
    await bad.patiently(lambda: bad.register(newer))
    await say(VerdictKind.REJOINED, 6)
    await bad.until(lambda: 6 in bad.job.layout.ranks, "rank 6 back in its place")
    await goes_on(bad)
    await bad.steps_are_gapless()
    assert trips, "it was meant to fail"
    decided = [plan.plan.epoch for plan in await bad.plans() if plan.state in _DECIDED]
    assert decided == sorted(set(decided)), "each epoch is one plan's"
    assert good.job.epoch == 0
    await goes_on(good)
