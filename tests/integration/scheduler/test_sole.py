"""One scheduler at a time works on a history."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.services.common.backoff import Reachability
from evenkeel.services.common.database import create_engine
from evenkeel.services.scheduler.adapters.sole import SoleScheduler, SupersededError

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

DEADLINE_SECONDS = 100.0


@pytest_asyncio.fixture
async def engine(fresh_database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database_url, application_name="test")
    yield engine
    await engine.dispose()


def scheduler(engine: AsyncEngine, **times: float) -> SoleScheduler:
    return SoleScheduler(engine, reachability=Reachability("postgres"), look_seconds=0.01, **times)


async def cut_all_others_off(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


async def test_a_second_one_waits_until_the_first_is_gone(engine: AsyncEngine) -> None:
    first, second = scheduler(engine), scheduler(engine)
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.5)
    await first.close()
    await asyncio.wait_for(waiting, DEADLINE_SECONDS)
    await second.close()


async def holder(engine: AsyncEngine) -> int | None:
    """Which session has the lock."""
    async with engine.connect() as connection:
        pid: int | None = await connection.scalar(
            text(
                "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )
    return pid


async def test_one_that_was_cut_off_takes_its_lock_again(engine: AsyncEngine) -> None:
    first = scheduler(engine)
    await first.acquire()
    before = await holder(engine)
    keeping = asyncio.create_task(first.keep())
    await cut_all_others_off(engine)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await holder(engine) in (before, None):
            assert not keeping.done()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await first.close()


async def test_one_that_was_cut_off_ends_at_once_when_another_came_first(engine: AsyncEngine) -> None:
    first, second = scheduler(engine, patience_seconds=10.0 * DEADLINE_SECONDS), scheduler(engine)
    await first.acquire()
    await cut_all_others_off(engine)
    await asyncio.wait_for(second.acquire(), DEADLINE_SECONDS)
    with pytest.raises(SupersededError):
        await asyncio.wait_for(first.keep(), DEADLINE_SECONDS)
    await first.close()
    await second.close()


async def test_one_that_is_silent_makes_way_and_one_that_looks_after_its_lock_does_not(engine: AsyncEngine) -> None:
    silent, second, third = (scheduler(engine, silence_seconds=seconds) for seconds in (1.0, 4.0, 4.0))
    await silent.acquire()
    await asyncio.wait_for(second.acquire(), DEADLINE_SECONDS)
    keeping = asyncio.create_task(second.keep())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(third.acquire(), 5.0)
    assert not keeping.done()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    for one in (silent, second, third):
        await one.close()
