"""Databases of these tests. Those shared by the session stay as they are: tests roll back what they do in them."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.services.common.postgres.database import create_engine
from tests.databases import create_database, drop_database, unique_database_name
from tests.integration.history.seed import seed


@pytest.fixture(scope="session")
def blank_url(database_server_url: str, _migrated_template: str) -> Iterator[str]:
    """A migrated database without rows."""
    name = unique_database_name("evenkeel_test_blank")
    yield create_database(database_server_url, name, template=_migrated_template)
    drop_database(database_server_url, name)


@pytest.fixture(scope="session")
def seeded_url(database_server_url: str, _migrated_template: str) -> Iterator[str]:
    """A migrated database with the past of ``seed`` in it."""
    name = unique_database_name("evenkeel_test_seeded")
    url = create_database(database_server_url, name, template=_migrated_template)
    asyncio.run(_seed(url))
    yield url
    drop_database(database_server_url, name)


async def _seed(url: str) -> None:
    engine = create_engine(url, application_name="test")
    async with engine.begin() as connection:
        await seed(connection)
    await engine.dispose()


@pytest_asyncio.fixture
async def connection(blank_url: str) -> AsyncIterator[AsyncConnection]:
    """A connection to a blank database, inside a transaction that is never committed."""
    async for connection in _never_committed(blank_url):
        yield connection


@pytest_asyncio.fixture
async def seeded(seeded_url: str) -> AsyncIterator[AsyncConnection]:
    """A connection to the seeded database, inside a transaction that is never committed."""
    async for connection in _never_committed(seeded_url):
        yield connection


async def _never_committed(url: str) -> AsyncIterator[AsyncConnection]:
    engine = create_engine(url, application_name="test")
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


@pytest_asyncio.fixture
async def engine(fresh_database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine of a database of the test's own."""
    engine = create_engine(fresh_database_url, application_name="test")
    yield engine
    await engine.dispose()


@pytest.fixture
def owner(seeded_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """The schema's owner at the seeded database, each statement a transaction."""
    with psycopg.connect(seeded_url, autocommit=True) as connection:
        yield connection
