"""Many saves at a time: each is all or nothing, and nobody's mistake is another one's."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.history.errors import StaleStateError, UnknownJobError
from evenkeel.history.records import JobStateRecord
from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.services.common.kafka import Partition
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.scheduler.adapters.store.store import Store
from tests.integration.history.seed import LLAMA_TOKEN, START, job, rank

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


@pytest_asyncio.fixture
async def engine(fresh_database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database_url, application_name="test")
    yield engine
    await engine.dispose()


async def count(engine: AsyncEngine, table: str) -> int:
    async with engine.connect() as connection:
        found: int = await connection.scalar(text(f"SELECT count(*) FROM {table}"))
    return found


async def test_saves_that_come_together_are_written_in_few_transactions(engine: AsyncEngine) -> None:
    store, commits = Store(engine, timeout_seconds=60.0), list[object]()
    event.listen(engine.sync_engine, "commit", commits.append)
    jobs = [f"job-{number}" for number in range(50)]
    await asyncio.gather(*(store.save([job(job_id, LLAMA_TOKEN)]) for job_id in jobs))
    await asyncio.gather(*(store.save([rank(job_id, number, START) for number in range(4)]) for job_id in jobs))
    assert await count(engine, "ranks") == 200
    assert len(commits) <= 6


async def test_a_save_that_is_refused_takes_nobody_with_it(engine: AsyncEngine) -> None:
    store = Store(engine, timeout_seconds=60.0)
    await store.save([job("a", LLAMA_TOKEN)])
    good = [store.save([rank("a", number, START)]) for number in range(3)]
    stuck = JobStateRecord(job_id="a", state=JobState.STUCK, at=START)
    bad = [
        store.save([rank("nobody", 0, START)]),
        store.save([replace(stuck, state=JobState.DEGRADED), replace(stuck, job_id="nobody")]),
    ]
    outcomes = await asyncio.gather(*good, *bad, store.save([stuck]), return_exceptions=True)
    assert [type(each) for each in outcomes[3:5]] == [UnknownJobError, UnknownJobError]
    assert (outcomes[:3], outcomes[5]) == ([None] * 3, None)
    assert await count(engine, "ranks") == 3
    async with engine.connect() as connection:
        states = await connection.scalars(text("SELECT state FROM job_events ORDER BY job_event_id"))
        assert list(states) == ["running", "stuck"], "nothing of the save that failed half way"


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_who_is_cancelled_takes_nobody_with_it_also_while_it_writes_for_all(
    engine: AsyncEngine, cancelled: int
) -> None:
    store = Store(engine, timeout_seconds=60.0)
    await store.save([job("a", LLAMA_TOKEN)])
    saves = [asyncio.create_task(store.save([rank("a", number, START)])) for number in range(3)]
    await asyncio.sleep(0)
    saves[cancelled].cancel()
    outcomes = await asyncio.gather(*saves, return_exceptions=True)
    assert isinstance(outcomes.pop(cancelled), asyncio.CancelledError)
    assert outcomes == [None, None]
    await store.save([JobStateRecord(job_id="a", state=JobState.STUCK, at=START)])
    assert await count(engine, "ranks") == 2


async def test_offsets_are_kept_by_partition_and_the_newest_stands(engine: AsyncEngine) -> None:
    store = Store(engine, timeout_seconds=60.0)
    assert await store.load_offsets() == {}
    assert await store.save_offsets({Partition("verdicts", 0): 5, Partition("verdicts", 1): 2})
    assert await store.save_offsets({Partition("verdicts", 0): 7})
    assert await store.load_offsets() == {Partition("verdicts", 0): 7, Partition("verdicts", 1): 2}


async def test_processes_and_how_their_jobs_stand_are_written_together_and_a_stale_one_stands_alone(
    engine: AsyncEngine,
) -> None:
    store, statements = Store(engine, timeout_seconds=60.0), list[object]()
    jobs = [f"job-{number}" for number in range(20)]
    await asyncio.gather(*(store.save([job(job_id, LLAMA_TOKEN)]) for job_id in jobs))
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *of: statements.append(of))
    saves = [store.save([rank(job_id, 0, START), state(job_id, 1)]) for job_id in jobs]
    await asyncio.gather(*saves)
    assert len(statements) < 30
    stale = store.save([rank("job-0", 1, START), state("job-0", 1)])
    newer = store.save([rank("job-1", 1, START), state("job-1", 2)])
    outcomes = await asyncio.gather(stale, newer, return_exceptions=True)
    assert [type(outcomes[0]), outcomes[1]] == [StaleStateError, None]
    assert await count(engine, "ranks") == 21


def state(job_id: str, version: int) -> WorkingStateRecord:
    return WorkingStateRecord(job_id=job_id, version=version, save_id=uuid.uuid4().hex, document={"version": version})
