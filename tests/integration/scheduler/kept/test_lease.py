"""One scheduler at a time is in charge, and none that was can write: against a real PostgreSQL."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.history import reads
from evenkeel.history.errors import DeposedError
from evenkeel.history.records import JobStateRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.services.common.backoff import Reachability
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.scheduler.adapters.store import lease
from evenkeel.services.scheduler.adapters.store.lease import Lease
from evenkeel.services.scheduler.adapters.store.store import Store
from tests.integration.history.seed import LLAMA_TOKEN, START, job

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

DEADLINE_SECONDS = 100.0


@dataclass
class Candidate:
    """A process that could be in charge, with sessions of its own."""

    engine: AsyncEngine
    lease: Lease
    store: Store
    leaders: asyncio.Queue[str]

    async def acquire(self, address: str = "a:1") -> int:
        return await asyncio.wait_for(self.lease.acquire(address), DEADLINE_SECONDS)


@pytest_asyncio.fixture
async def candidates(fresh_database_url: str) -> AsyncIterator[list[Candidate]]:
    made = []
    for _ in range(3):
        holder, leaders = uuid.uuid4().hex[:12], asyncio.Queue[str]()
        engine = create_engine(fresh_database_url, application_name=f"test/{holder}")
        lease = Lease(engine, holder, reachability=Reachability("postgres"), on_leader=leaders.put_nowait)
        made.append(Candidate(engine, lease, Store(engine, fence=lease.fence), leaders))
    yield made
    for each in made:
        await each.engine.dispose()


@asynccontextmanager
async def kept(candidate: Candidate) -> AsyncIterator["asyncio.Task[None]"]:
    keeping = asyncio.create_task(candidate.lease.keep())
    yield keeping
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def renewed(candidate: Candidate, times: int = 1) -> None:
    """Once its time has been set anew so often."""

    async def expiry() -> object:
        async with candidate.engine.connect() as connection:
            return await connection.scalar(text("SELECT expires_at FROM leases"))

    async with asyncio.timeout(DEADLINE_SECONDS):
        for _ in range(times):
            before = await expiry()
            while await expiry() == before:  # noqa: ASYNC110 - the database tells nobody
                await asyncio.sleep(0.05)


async def test_one_that_renews_stays_in_charge_and_others_know_where_it_is(
    candidates: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = candidates
    short_seconds = lease.LEASE_SECONDS
    monkeypatch.setattr(lease, "LEASE_SECONDS", 60.0)  # a machine that is busy with other tests pauses for a second
    assert await first.acquire("first:1") == 1
    assert first.lease.holds
    async with kept(first) as keeping:
        waiting = asyncio.create_task(second.lease.acquire("second:1"))
        assert await asyncio.wait_for(second.leaders.get(), DEADLINE_SECONDS) == "first:1"
        await renewed(first, times=3)
        assert not waiting.done()
        assert not keeping.done()
        assert not second.lease.holds
        assert second.leaders.empty()
        monkeypatch.setattr(lease, "LEASE_SECONDS", short_seconds)
        await renewed(first, times=2)
    assert await asyncio.wait_for(waiting, DEADLINE_SECONDS) == 2
    with pytest.raises(DeposedError):
        await asyncio.wait_for(first.lease.keep(), DEADLINE_SECONDS)


async def test_one_that_gives_up_makes_way_at_once(candidates: list[Candidate]) -> None:
    first, second, _ = candidates
    await first.acquire()
    await first.lease.give_up()
    assert not first.lease.holds
    assert await second.acquire() == 2


async def test_of_many_that_want_to_be_in_charge_one_is(candidates: list[Candidate]) -> None:
    waiting = [asyncio.create_task(each.lease.acquire("x:1")) for each in candidates]
    done, pending = await asyncio.wait(waiting, timeout=DEADLINE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result() for each in done] == [1]
    for each in pending:
        each.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


async def test_what_a_deposed_one_writes_is_refused_and_nothing_of_it_is_there(candidates: list[Candidate]) -> None:
    first, second, _ = candidates
    await first.acquire()
    await first.store.save([job("a", LLAMA_TOKEN)])
    assert await second.acquire() == 2
    with pytest.raises(DeposedError):
        await first.store.save([JobStateRecord(job_id="a", state=JobState.STUCK, at=START)])
    await second.store.save([JobStateRecord(job_id="a", state=JobState.RESHAPING, at=START)])
    known = await second.store.read(reads.get_job, "a")
    assert known is not None
    assert known.state is JobState.RESHAPING


async def test_one_that_is_frozen_in_the_middle_of_a_save_is_cut_off_and_its_save_is_not(
    candidates: list[Candidate],
) -> None:
    first, second, _ = candidates
    await first.acquire()
    async with first.engine.connect() as frozen:
        await first.lease.fence(frozen)
        await frozen.execute(text("INSERT INTO nodes (node, first_seen_at) VALUES ('half-written', clock_timestamp())"))
        assert await second.acquire() == 2
        with pytest.raises(Exception, match=r"terminat|closed|lost"):
            await frozen.execute(text("SELECT 1"))
        await frozen.invalidate()
    async with second.engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM nodes")) == 0
        await connection.rollback()


async def test_a_renewal_waits_for_no_save(candidates: list[Candidate]) -> None:
    first, *_ = candidates
    await first.acquire()
    async with first.engine.begin() as saving:
        await first.lease.fence(saving)
        async with kept(first) as keeping:
            await renewed(first)
            assert not keeping.done()


async def test_nobody_acts_on_a_renewal_that_is_old(candidates: list[Candidate]) -> None:
    first, *_ = candidates
    seconds = 1000.0
    aged = Lease(first.engine, "aged", reachability=Reachability("postgres"), clock=lambda: seconds)
    await asyncio.wait_for(aged.acquire("a:1"), DEADLINE_SECONDS)
    seconds += 0.89
    assert aged.holds
    seconds += 0.02
    assert not aged.holds
