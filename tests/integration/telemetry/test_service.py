import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from sqlalchemy import text

from evenkeel.contracts.mac import job_key, signed
from evenkeel.contracts.topics import BATCHES
from evenkeel.history.writes import register_job, register_ranks
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.telemetry.v2 import frames_pb2, process_pb2
from tests.integration.history.seed import START, job, rank
from tests.integration.telemetry.service import Observations, Ranks, Service, observations_of, ranks_in, ranks_of
from tests.unit.telemetry.samples import Sample

pytestmark = pytest.mark.integration


@pytest.fixture
def job_id() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def service(kafka_bootstrap: str, fresh_database_url: str, tmp_path: Path) -> Service:
    return Service(
        tmp_path,
        {
            "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap,
            "EVENKEEL_DATABASE_URL": fresh_database_url,
            "EVENKEEL_TELEMETRY_GROUP": f"telemetry-{uuid.uuid4().hex[:8]}",
            "EVENKEEL_ROLLUP_ITERATIONS": "4",
        },
    )


@contextlib.asynccontextmanager
async def running(service: Service, bootstrap: str, job_id: str) -> AsyncIterator[tuple[Ranks, Observations]]:
    await service.start()
    try:
        async with ranks_of(bootstrap, job_id) as ranks, observations_of(bootstrap, job_id) as observations:
            yield ranks, observations
    finally:
        await service.stop()


def assert_numbered_without_gap(seen: Observations) -> None:
    """From any first number: where the shared topic holds more than is read back, it is the clock's."""
    expected = seen.all[0].sequence
    for each in seen.all:
        assert each.sequence == expected
        expected += max(1, len(each.frames.iteration))


@pytest.mark.asyncio
async def test_records_become_frames_events_pictures_and_rollups(
    service: Service, kafka_bootstrap: str, fresh_database_url: str, job_id: str
) -> None:
    async with running(service, kafka_bootstrap, job_id) as (ranks, seen):
        for iteration in range(9):
            await ranks.iteration(iteration, range(4))
        await seen.until(lambda: len(seen.frames) == 9)
        died = process_pb2.ProcessEvent(
            at_unix_seconds=time.time(),
            kind=process_pb2.PROCESS_EVENT_KIND_DIED,
            rank=3,
            incarnation=0,
            detail="signal 9",
        )
        await ranks.send(ranks.told(-1, events=[died]))
        await seen.until(lambda: len(seen.events) == 1)
        began_seconds = time.monotonic()
        while not (stuck := pictures_of(seen, [0, 1, 2])):
            await ranks.send(*ranks.progress(9, range(3), "wait:tensor"))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await seen.until(lambda: bool(pictures_of(seen, [0, 1, 2])))
            assert time.monotonic() - began_seconds < 200
        await service.until_metric('evenkeel_telemetry_rollups_total{outcome="written"}', lambda rows: rows >= 9)
    assert [(each.epoch, int(each.iteration[0])) for each in seen.frames] == [(0, iteration) for iteration in range(9)]
    assert all(ranks_in(each) == [0, 1, 2, 3] for each in seen.frames)
    assert_numbered_without_gap(seen)
    assert seen.events[0].detail == "signal 9"
    assert stuck[0].seconds_without_progress > 1.0
    engine = create_engine(fresh_database_url, application_name="test")
    async with engine.connect() as connection:
        rows = (
            await connection.execute(
                text(
                    "SELECT rank, first_iteration, num_iterations, tokens, forward_seconds, loss FROM rank_rollups"
                    " WHERE job_id = :job_id ORDER BY rank, first_iteration"
                ),
                {"job_id": job_id},
            )
        ).all()
    await engine.dispose()
    full_windows = [(rank, first, 4, 400) for rank in range(4) for first in (0, 4)]
    assert [tuple(row[:4]) for row in rows if row.first_iteration < 8] == full_windows
    # A dead rank's window is written as far as it got; those of the others after a while.
    assert (3, 8, 1, 100) in [tuple(row[:4]) for row in rows]
    assert all(row[4] == pytest.approx(0.01) and row[5] == 2.0 for row in rows)


def pictures_of(seen: Observations, ranks: list[int]) -> list[frames_pb2.Liveness]:
    """Where these ranks stand still; before the death is heard of there may be one of all."""
    return [each for each in seen.pictures if [*each.rank] == ranks]


@pytest.mark.parametrize("one_of_two", [False, True], ids=["it starts again", "the other takes over"])
@pytest.mark.asyncio
async def test_after_kill_9_the_stream_goes_on_without_hole_or_repetition(
    service: Service, tmp_path: Path, kafka_bootstrap: str, job_id: str, one_of_two: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        other = service.another(tmp_path / "other", "other")
        if one_of_two:
            stack.push_async_callback(other.stop)
            await other.start()
        ranks, seen = await stack.enter_async_context(running(service, kafka_bootstrap, job_id))
        for iteration in range(20):
            await ranks.iteration(iteration, range(4))
        # Together: where the ranks are heard to go on, a frame does not wait half a second for two of them.
        await ranks.send(*ranks.samples(20, range(2)), *ranks.progress(20, range(4)))
        await seen.until(lambda: len(seen.frames) >= 20)
        has_it = service
        if one_of_two and not await service.metric("evenkeel_telemetry_jobs"):
            has_it = other
        await has_it.kill()
        await ranks.iteration(20, range(2, 4))
        for iteration in range(21, 30):
            await ranks.iteration(iteration, range(4))
        if not one_of_two:
            await service.start()
        await seen.until(lambda: len(seen.frames) >= 30)
        await ranks.iteration(30, range(4))
        await seen.until(lambda: len(seen.frames) >= 31)
    assert [int(each.iteration[0]) for each in seen.frames] == list(range(31))
    assert all(len(ranks_in(each)) == 4 and each.present.all() for each in seen.frames)
    assert_numbered_without_gap(seen)


@pytest.mark.asyncio
async def test_killed_in_the_middle_of_runs_of_frames_it_says_each_frame_once(
    service: Service, kafka_bootstrap: str, job_id: str
) -> None:
    num_iterations = 2000
    async with running(service, kafka_bootstrap, job_id) as (ranks, seen):
        for iteration in range(3):
            await ranks.iteration(iteration, range(8))
        await seen.until(lambda: len(seen.frames) >= 3)
        await service.kill()
        samples = [ranks.samples(iteration, range(8)) for iteration in range(3, num_iterations)]
        await ranks.send(*(record for each in samples for record in each))
        for _ in range(3):
            await service.start()
            known = len(seen.frames)
            await seen.until(lambda known=known: len(seen.frames) > known or known == num_iterations)  # type: ignore[misc]
            await service.kill()
        await service.start()
        await seen.until(lambda: len(seen.frames) >= num_iterations)
        await ranks.iteration(num_iterations, range(8))
        await seen.until(lambda: int(seen.frames[-1].iteration[0]) == num_iterations)
    assert [int(each.iteration[0]) for each in seen.frames] == list(range(num_iterations + 1))
    assert all(len(ranks_in(each)) == 8 and each.present.all() for each in seen.frames)
    assert seen.num_runs > 1
    assert_numbered_without_gap(seen)


@pytest.mark.asyncio
async def test_hostile_records_go_to_the_dead_letters_and_the_job_goes_on(
    service: Service, kafka_bootstrap: str, job_id: str
) -> None:
    async with running(service, kafka_bootstrap, job_id) as (ranks, seen):
        await ranks.iteration(0, range(2))
        good = Sample(0, 1).message(job_id)
        hostile = {b"\xff\xfe not a batch": "malformed", good.SerializeToString()[:-3]: "malformed"}
        for bad in (float("nan"), -1.0, float("inf"), 1e30):
            hostile[Sample(0, 1, wall_seconds=bad).message(job_id).SerializeToString()] = "value"
        hostile[Sample(0, 1).message("somebody else's").SerializeToString()] = "key"
        hostile[Sample(-7, 1).message(job_id).SerializeToString()] = "value"
        hostile[Sample(2**31 - 1, 1).message(job_id).SerializeToString()] = "value"
        await ranks.send_bytes(*hostile)
        for iteration in range(1, 4):
            await ranks.iteration(iteration, range(2))
        await seen.until(lambda: len(seen.frames) >= 4)
        letters = await dead_letters(kafka_bootstrap, job_id, len(hostile))
        # The topic is shared: what others left there counts too. They are counted after they have arrived.
        await service.until_metric("evenkeel_kafka_dead_letters_total", lambda letters: letters >= len(hostile))
    assert [int(each.iteration[0]) for each in seen.frames] == [0, 1, 2, 3]
    assert letters == hostile


@pytest.mark.asyncio
async def test_nobody_but_a_registered_job_tells_of_its_ranks(
    service: Service, kafka_bootstrap: str, fresh_database_url: str, job_id: str
) -> None:
    engine = create_engine(fresh_database_url, application_name="test")
    async with engine.begin() as connection:
        for each in (job_id, f"{job_id}-other"):
            await register_job(connection, job(each, f"a-token-of-{each}"))
        await register_ranks(connection, [rank(job_id, 1, START)])
    await engine.dispose()
    key, stranger = (job_key(each, f"a-token-of-{each}") for each in (job_id, f"{job_id}-other"))
    await service.start()
    try:
        async with (
            ranks_of(kafka_bootstrap, job_id, key) as ranks,
            observations_of(kafka_bootstrap, job_id) as seen,
        ):
            died = process_pb2.ProcessEvent(
                at_unix_seconds=time.time(), kind=process_pb2.PROCESS_EVENT_KIND_DIED, rank=1
            )
            forged = ranks.told(-1, events=[died]).SerializeToString()
            unheard = ranks.told(-1, events=[process_pb2.ProcessEvent(kind=died.kind, rank=1, incarnation=10**9)])
            hostile = {
                forged: "unsigned",
                signed(forged, stranger): "signature",
                signed(unheard.SerializeToString(), key): "unregistered_process",
            }
            await ranks.send_bytes(*hostile)
            for iteration in range(4):
                await ranks.iteration(iteration, range(2))
            await seen.until(lambda: len(seen.frames) >= 4)
            assert await dead_letters(kafka_bootstrap, job_id, len(hostile)) == hostile
            assert seen.events == []
            await ranks.send_bytes(signed(forged, key))
            await seen.until(lambda: len(seen.events) == 1)
    finally:
        await service.stop()


async def dead_letters(bootstrap_servers: str, job_id: str, count: int) -> dict[bytes, str]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    found: dict[bytes, str] = {}
    try:
        consumer.assign([TopicPartition(BATCHES.dead_letter_name, 0)])
        async with asyncio.timeout(200):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for each in records:
                        if each.key == job_id.encode():
                            found[each.value] = dict(each.headers)["dlq-error"].decode()
    finally:
        await consumer.stop()
    return found
