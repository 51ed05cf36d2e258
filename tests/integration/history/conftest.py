from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.common.database import create_engine
from tests.integration.history.seed import seed


@pytest_asyncio.fixture
async def engine(fresh_database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database_url, application_name="test")
    yield engine
    await engine.dispose()


@pytest_asyncio.fixture
async def connection(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection inside a transaction that is never committed."""
    async with engine.connect() as connection:
        yield connection


@pytest_asyncio.fixture
async def seeded(connection: AsyncConnection) -> AsyncConnection:
    await seed(connection)
    return connection


@pytest_asyncio.fixture
async def seeded_url(engine: AsyncEngine, fresh_database_url: str) -> str:
    """A database of one's own with the past of ``seed`` in it, committed."""
    async with engine.begin() as connection:
        await seed(connection)
    return fresh_database_url


@pytest.fixture
def owner(seeded_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """The schema's owner at the seeded database, each statement a transaction."""
    with psycopg.connect(seeded_url, autocommit=True) as connection:
        yield connection
