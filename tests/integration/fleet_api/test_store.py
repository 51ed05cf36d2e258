import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.contracts.topics import PLANS
from evenkeel.history import reads
from evenkeel.history.errors import UnknownIncidentError
from evenkeel.history.records import IncidentEventRecord, JobStateRecord, PlanEventRecord
from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanState, VerdictKind
from evenkeel.layouts.codec import layout_from_proto
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.common.kafka.records import OutgoingRecord
from evenkeel.services.scheduler.adapters.store.outbox import OutboxPublisher
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.jobs.steps import JobChange
from tests.fakes.kafka import FakeBroker, FakeProducer
from tests.integration.history.seed import START, incident, job, layout_with, life, plan, rank, verdict

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

TOKEN = "job-token-0123456789"
SLOW = verdict("v1", VerdictKind.COMPUTE_SLOW, rank("a", 5, START), START, 10, 0.5)
PLAN = plan("p1", "i1", START + timedelta(seconds=1), job_id="a", epoch=1, layout=layout_with(shares=(2, 1)))
STORY: Sequence[JobChange] = (
    job("a", TOKEN),
    rank("a", 5, START),
    SLOW,
    incident("i1", SLOW),
    PLAN,
    *life(PLAN, 1.3, first_iteration=12),
    IncidentEventRecord(incident_id="i1", kind=IncidentEventKind.RESOLVED, at=START + timedelta(minutes=1)),
    JobStateRecord(job_id="a", state=JobState.STUCK, at=START),
)


async def count(engine: AsyncEngine, table: str) -> int:
    async with engine.connect() as connection:
        number: int | None = await connection.scalar(text(f"SELECT count(*) FROM {table}"))
    assert number is not None
    return number


async def test_a_story_is_saved_once_however_often_it_is_told(engine: AsyncEngine) -> None:
    store = Store(engine, timeout_seconds=60.0)

    await store.save(STORY)
    before = [await count(engine, table) for table in ("ranks", "verdicts", "incidents", "incident_events")]
    await store.save(STORY[:-1])

    assert [await count(engine, table) for table in ("ranks", "verdicts", "incidents", "incident_events")] == before
    assert await count(engine, "plan_events") == 4
    assert await count(engine, "outbox") == 4


async def test_changes_are_saved_all_or_none(engine: AsyncEngine) -> None:
    store = Store(engine, timeout_seconds=60.0)
    dangling = IncidentEventRecord(incident_id="i9", kind=IncidentEventKind.RESOLVED, at=START)

    with pytest.raises(UnknownIncidentError):
        await store.save([*STORY, dangling])

    assert await count(engine, "jobs") == 0
    assert await count(engine, "outbox") == 0
    assert not store.outbox_filled.is_set()


async def publish_all(publisher: OutboxPublisher, engine: AsyncEngine) -> None:
    while await publisher.publish_once():
        pass
    assert await count(engine, "outbox") == 0


async def test_each_state_of_a_plan_goes_to_kafka_once_and_in_order(engine: AsyncEngine) -> None:
    store, broker = Store(engine, timeout_seconds=60.0), FakeBroker()
    publisher = OutboxPublisher(store, FakeProducer(broker))
    await store.save(STORY)

    await publish_all(publisher, engine)

    records = broker.records(PLANS.name)
    messages = [pb.Plan.FromString(record.value or b"") for record in records]
    assert [message.state for message in messages] == [
        pb.PLAN_STATE_PROPOSED,
        pb.PLAN_STATE_COMMITTED,
        pb.PLAN_STATE_APPLIED,
        pb.PLAN_STATE_MEASURED,
    ]
    assert {record.key for record in records} == {b"a"}
    assert [dict(record.headers)["ce_id"] for record in records] == [
        b"p1:proposed",
        b"p1:committed",
        b"p1:applied",
        b"p1:measured",
    ]
    assert dict(records[0].headers)["ce_type"] == b"evenkeel.scheduler.v1.Plan"
    assert layout_from_proto(messages[0].layout) == PLAN.layout
    assert [message.first_iteration for message in messages] == [-1, -1, 12, 12]
    assert [message.measured_seconds for message in messages] == [0.0, 0.0, 0.0, 1.3]


async def test_the_publisher_wakes_up_when_a_plan_is_saved(engine: AsyncEngine) -> None:
    store, broker = Store(engine, timeout_seconds=60.0), FakeBroker()
    running = asyncio.create_task(OutboxPublisher(store, FakeProducer(broker)).run())
    try:
        await store.save(STORY)
        async with asyncio.timeout(60), broker.appended:
            await broker.appended.wait_for(lambda: len(broker.records(PLANS.name)) == 4)
    finally:
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class DyingProducer:
    """Sends everything, and dies before it can say so."""

    def __init__(self, broker: FakeBroker) -> None:
        self._producer = FakeProducer(broker)

    async def send_all(self, records: Sequence[OutgoingRecord]) -> None:
        await self._producer.send_all(records)
        raise ConnectionResetError("killed")


async def test_a_crash_between_kafka_and_the_database_repeats_messages_with_the_same_ids(engine: AsyncEngine) -> None:
    store, broker = Store(engine, timeout_seconds=60.0), FakeBroker()
    await store.save(STORY)

    with pytest.raises(ConnectionError, match="killed"):
        await OutboxPublisher(store, DyingProducer(broker)).publish_once()
    await publish_all(OutboxPublisher(store, FakeProducer(broker)), engine)

    ids = [dict(record.headers)["ce_id"] for record in broker.records(PLANS.name)]
    assert len(ids) == 8
    assert ids[:4] == ids[4:]


async def test_while_kafka_is_away_nothing_is_lost(engine: AsyncEngine) -> None:
    store, broker = Store(engine, timeout_seconds=60.0), FakeBroker()
    broker.reachable.clear()
    running = asyncio.create_task(OutboxPublisher(store, FakeProducer(broker)).run())
    try:
        await store.save(STORY)
        broker.reachable.set()
        async with asyncio.timeout(60), broker.appended:
            await broker.appended.wait_for(lambda: len(broker.records(PLANS.name)) == 4)
    finally:
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


Doors = tuple[Callable[[], None], Callable[[], None]]


@pytest.fixture
def doors(database_server_url: str, fresh_database_url: str) -> Iterator[Doors]:
    """Close the test's database to everybody, and open it again."""
    name = urlsplit(fresh_database_url).path.lstrip("/")
    with psycopg.connect(database_server_url, autocommit=True) as server:

        def allow(allowed: bool) -> None:
            server.execute(
                sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(sql.Identifier(name), sql.Literal(allowed))
            )

        def close() -> None:
            allow(False)
            server.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,))

        yield close, lambda: allow(True)
        allow(True)


async def test_an_outage_of_the_database_delays_a_patient_save_and_loses_nothing(
    engine: AsyncEngine, doors: Doors
) -> None:
    close, open_again = doors
    store = Store(engine, timeout_seconds=60.0)
    await store.save(STORY[:4])

    close()
    with pytest.raises(OperationalError, match=r"not currently accepting connections|terminat"):
        await store.save(STORY[4:])
    saving = asyncio.create_task(store.save_patiently(STORY[4:]))
    done, _ = await asyncio.wait([saving], timeout=0.5)
    assert not done
    open_again()

    async with asyncio.timeout(60):
        await saving
    (job_id,) = await store.read(reads.unfinished_jobs)
    loaded = await store.load_job(job_id)
    assert loaded is not None
    assert set(loaded.layouts) == {0, 1}
    status = await store.read(reads.get_job, job_id)
    assert status is not None
    assert status.state is JobState.STUCK


async def test_a_restarted_scheduler_finds_the_decision_it_must_finish(engine: AsyncEngine) -> None:
    await Store(engine, timeout_seconds=60.0).save(STORY[:5])
    committed = PlanEventRecord(plan_id="p1", state=PlanState.COMMITTED, at=START, decision={"sources": [0, 1]})
    state = WorkingStateRecord(job_id=STORY[0].job_id, version=1, save_id="a", document={}, plan_ids=("p1",))
    await Store(engine, timeout_seconds=60.0).save([committed, state])

    store = Store(engine, timeout_seconds=60.0)
    (job_id,) = await store.read(reads.unfinished_jobs)
    loaded = await store.load_job(job_id)

    assert loaded is not None
    assert loaded.record.job_token == TOKEN
    assert loaded.state == state
    (plan,) = loaded.plans.values()
    assert (plan.plan, plan.state, plan.decision) == (PLAN, PlanState.COMMITTED, {"sources": [0, 1]})
    assert loaded.layouts[1] == PLAN.layout
