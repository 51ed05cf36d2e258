"""A server that is frozen, which no limit of its own can help against: every wait ends from our side."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.services.common.postgres.database import DATABASE_AWAY, create_engine
from evenkeel.stack.postgres.server import Postgres
from evenkeel.stack.processes.faults import frozen

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


@pytest_asyncio.fixture
async def engine(own_postgres: Postgres) -> AsyncIterator[AsyncEngine]:
    """Connected already, with short limits."""
    engine = create_engine(
        own_postgres.database_url, application_name="test", connect_timeout_seconds=20, statement_timeout_seconds=1.0
    )
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
    yield engine
    await engine.dispose()


def server_process_id(server: Postgres) -> int:
    assert server.process is not None
    assert server.process.process_id is not None
    return server.process.process_id


async def test_our_own_time_limit_holds_although_the_driver_waits_for_a_cancellation(
    own_postgres: Postgres, engine: AsyncEngine
) -> None:
    # The driver would wait for as long as the server is frozen: that this goes on at all is the proof.
    with frozen(server_process_id(own_postgres)), pytest.raises(DATABASE_AWAY):
        async with asyncio.timeout(0.5), engine.begin() as connection:
            await connection.execute(text("SELECT 1"))
    async with engine.begin() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar() == 1


async def test_a_wait_without_any_limit_of_ours_ends_too(own_postgres: Postgres, engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        with frozen(server_process_id(own_postgres)), pytest.raises(DATABASE_AWAY):
            await connection.execute(text("SELECT 1"))


async def test_a_statement_that_takes_too_long_ends_by_the_servers_own_limit(engine: AsyncEngine) -> None:
    with pytest.raises(DATABASE_AWAY, match="statement timeout"):
        async with engine.connect() as connection:
            await connection.execute(text("SELECT pg_sleep(5)"))
