import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.stack.kafka.node import Kafka
from evenkeel.stack.kafka.topics import apply_topics
from evenkeel.stack.postgres.server import Postgres
from evenkeel.stack.processes.watchdog import Watchdog
from tests.integration.telemetry.service import Service, observations_of, ranks_in, ranks_of

pytestmark = pytest.mark.integration


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    """A broker of one's own, to take away; started, and with its topics."""
    watchdog = Watchdog()
    watchdog.start()
    server = Kafka(tmp_path / "kafka", watchdog)
    try:
        server.start()
        apply_topics(server.bootstrap_servers, num_partitions=4)
        yield server
    finally:
        server.stop(grace_seconds=0)
        watchdog.stop()


@pytest.mark.asyncio
@pytest.mark.timeout(600)
async def test_kafka_away_at_start_and_again_later_and_the_database_from_then_on_lose_no_frame(
    kafka: Kafka, own_postgres: Postgres, tmp_path: Path
) -> None:
    job_id = f"job-{uuid.uuid4().hex[:8]}"
    service = Service(
        tmp_path,
        {
            "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "EVENKEEL_DATABASE_URL": own_postgres.database_url,
            "EVENKEEL_ROLLUP_ITERATIONS": "2",
        },
    )
    await asyncio.to_thread(kafka.stop)
    await service.launch()
    try:
        assert (await service.get("/healthz"))[0] == 503
        assert (await service.get("/livez"))[0] == 200
        await asyncio.to_thread(kafka.start)
        await service.until_ready()
        async with ranks_of(kafka.bootstrap_servers, job_id) as ranks:
            for iteration in range(5):
                await ranks.iteration(iteration, range(3))
            # Together: where the ranks are heard to go on, a frame does not wait half a second for one of them.
            await ranks.send(*ranks.samples(5, range(1)), *ranks.progress(5, range(3)))
        async with observations_of(kafka.bootstrap_servers, job_id) as seen:
            await seen.until(lambda: len(seen.frames) >= 5)
        # What is heard of a job only while the database is away is not believed: it may have a key.
        await asyncio.to_thread(own_postgres.stop)
        await asyncio.to_thread(kafka.stop)
        await service.until_metric("evenkeel_kafka_unreachable", lambda value: value == 1)
        await asyncio.to_thread(kafka.start)
        async with (
            ranks_of(kafka.bootstrap_servers, job_id) as ranks,
            observations_of(kafka.bootstrap_servers, job_id) as seen,
        ):
            await ranks.iteration(5, range(1, 3))
            for iteration in range(6, 10):
                await ranks.iteration(iteration, range(3))
            await seen.until(lambda: len(seen.frames) >= 10)
        await service.until_metric("evenkeel_telemetry_rollups_waiting", lambda rows: rows >= 6)
    finally:
        code = await service.stop()
    assert code == 0
    assert [int(each.iteration[0]) for each in seen.frames if len(ranks_in(each)) == 3] == [
        0,
        1,
        2,
        3,
        4,
        *range(5, 10),
    ]
    log = service.log.read_text()
    assert log.count('"unreachable, waiting for it"') <= 12
    assert "Traceback" not in log
