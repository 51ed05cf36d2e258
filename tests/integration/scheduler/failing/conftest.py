"""Two jobs of one scheduler, of which one is meant to fail."""

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.scheduler.conftest import (
    HOME,
    World,
    job_record,
    new_scheduler,
    patient_engine,
)
from tests.integration.scheduler.failing.tripping_store import TrippingStore
from tests.integration.scheduler.toy_job import ToyJob


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
