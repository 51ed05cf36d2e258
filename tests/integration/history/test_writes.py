import dataclasses
import functools
import math
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.history import reads, writes
from evenkeel.history.errors import (
    JobConflictError,
    StaleStateError,
    UnknownIncidentError,
    UnknownJobError,
    UnknownPlanError,
)
from evenkeel.history.prune import prune_rollups
from evenkeel.history.records import IncidentEventRecord, PlanEventRecord, RankExitRecord
from evenkeel.history.stream_records import OutboxRecord, RollupRecord, SnapshotRecord, WorkingStateRecord
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanState, VerdictKind
from tests.integration.history.seed import (
    FULL,
    LLAMA_TOKEN,
    START,
    job,
    layout_with,
    plan,
    rank,
    rollup,
    verdict,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def count(connection: AsyncConnection, table: str) -> int:
    number: int | None = await connection.scalar(text(f"SELECT count(*) FROM {table}"))
    assert number is not None
    return number


async def test_the_same_job_twice_is_one_job(connection: AsyncConnection) -> None:
    assert await writes.register_job(connection, job("a", LLAMA_TOKEN))
    later = dataclasses.replace(job("a", LLAMA_TOKEN), registered_at=START + timedelta(days=1))

    assert not await writes.register_job(connection, later)

    known = await reads.get_job(connection, "a")
    assert known is not None
    assert known.registered_at == START


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"job_token": "another-token-123456"}, "token"),
        ({"layout": layout_with(shares=(3, 1))}, "layout"),
        ({"tenant": "research"}, "tenant"),
        ({"model": dataclasses.replace(job("a", LLAMA_TOKEN).model, activation_bytes_per_token=1)}, "model"),
    ],
)
async def test_a_taken_job_id_names_the_difference(
    connection: AsyncConnection, change: dict[str, object], difference: str
) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))

    with pytest.raises(JobConflictError, match=f"another {difference}"):
        await writes.register_job(connection, dataclasses.replace(job("a", LLAMA_TOKEN), **change))  # type: ignore[arg-type]


async def test_a_huge_cost_comes_back_as_it_went_in(connection: AsyncConnection) -> None:
    block = dataclasses.replace(job("a", LLAMA_TOKEN).model.blocks[0], forward_flops_per_token=1e30)
    huge = dataclasses.replace(
        job("a", LLAMA_TOKEN), model=dataclasses.replace(job("a", LLAMA_TOKEN).model, blocks=(block,))
    )

    await writes.register_job(connection, huge)

    assert not await writes.register_job(connection, huge)
    known = await reads.get_job(connection, "a")
    assert known is not None
    assert known.model == huge.model


async def test_nothing_leaves_finished(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))

    assert not await writes.set_job_state(connection, "a", JobState.RUNNING, START)
    assert await writes.set_job_state(connection, "a", JobState.FINISHED, START)
    assert not await writes.set_job_state(connection, "a", JobState.RUNNING, START)

    assert await count(connection, "job_events") == 2


async def test_a_rank_gets_new_incarnations_and_is_kept_once(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))
    first = rank("a", 0, START)

    assert await writes.register_ranks(connection, [first]) == [True]
    later = dataclasses.replace(first, registered_at=START + timedelta(hours=1))
    assert await writes.register_ranks(connection, [later]) == [False]
    assert await writes.register_ranks(connection, [rank("a", 0, START, incarnation=1)]) == [True]

    known = await reads.get_job(connection, "a")
    assert known is not None
    assert known.ranks == (rank("a", 0, START, incarnation=1),)
    assert await count(connection, "ranks") == 2
    assert await count(connection, "rank_moves") == 0
    assert await count(connection, "devices") == 1


async def test_a_process_that_registers_from_elsewhere_is_known_where_it_is_now(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))
    first, other = rank("a", 0, START), rank("a", 1, START)
    elsewhere = dataclasses.replace(first, address="elsewhere:1", registered_at=START + timedelta(hours=1))
    restarted = dataclasses.replace(elsewhere, process_id=first.process_id + 1)

    for each in (first, other):
        assert await writes.register_ranks(connection, [each]) == [True]
    for each in (elsewhere, restarted, first, restarted):
        assert await writes.register_ranks(connection, [each]) == [True]
        assert await writes.register_ranks(connection, [each]) == [False]
        known = await reads.get_job(connection, "a")
        assert known is not None
        assert known.ranks == (dataclasses.replace(each, registered_at=START), other)
    assert await count(connection, "ranks") == 2
    assert await count(connection, "rank_moves") == 4

    assert await writes.register_ranks(connection, [rank("a", 0, START, incarnation=1)]) == [True]
    assert await count(connection, "ranks") == 3


async def test_processes_of_many_jobs_are_added_in_one_call(connection: AsyncConnection) -> None:
    for job_id in ("a", "b"):
        await writes.register_job(connection, job(job_id, LLAMA_TOKEN))
    everybody = [rank(job_id, number, START) for job_id in ("b", "a") for number in (1, 0)]

    assert await writes.register_ranks(connection, everybody[:1]) == [True]
    moved = dataclasses.replace(everybody[0], address="elsewhere:1")
    assert await writes.register_ranks(connection, [moved, *everybody[1:]]) == [True] * 4
    assert await writes.register_ranks(connection, [moved, *everybody[1:]]) == [False] * 4

    known = await reads.get_job(connection, "b")
    assert known is not None
    assert known.ranks == (everybody[1], moved)


async def test_the_first_end_of_a_process_stands(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))
    first = RankExitRecord(job_id="a", rank=0, incarnation=0, code=1, last_line="KeyError: 'loss'", at=START)
    killed = RankExitRecord(job_id="a", rank=1, incarnation=2, code=0, signal=9, at=START)

    assert await writes.record_exit(connection, first)
    assert not await writes.record_exit(connection, dataclasses.replace(first, code=3))
    assert await writes.record_exit(connection, killed)

    ends = await connection.execute(text("SELECT rank, incarnation, code, signal, last_line FROM rank_exits"))
    assert sorted(map(tuple, ends)) == [(0, 0, 1, 0, "KeyError: 'loss'"), (1, 2, 0, 9, "")]
    with pytest.raises(UnknownJobError, match="'b'"):
        async with connection.begin_nested():
            await writes.record_exit(connection, dataclasses.replace(first, job_id="b"))


async def test_what_refers_to_nothing_is_refused_by_name(connection: AsyncConnection) -> None:
    someone = rank("nobody", 0, START)
    event = PlanEventRecord(plan_id="p9", state=PlanState.APPLIED, at=START)
    resolved = IncidentEventRecord(incident_id="i9", kind=IncidentEventKind.RESOLVED, at=START)

    with pytest.raises(UnknownJobError, match="'nobody'"):
        async with connection.begin_nested():
            await writes.register_ranks(connection, [someone])
    with pytest.raises(UnknownJobError, match="'nobody'"):
        async with connection.begin_nested():
            await writes.record_verdict(connection, verdict("v", VerdictKind.HANG, someone, START, 1, 0.0))
    with pytest.raises(UnknownJobError, match="'nobody'"):
        async with connection.begin_nested():
            await writes.set_job_state(connection, "nobody", JobState.FINISHED, START)
    with pytest.raises(UnknownPlanError, match="'p9'"):
        async with connection.begin_nested():
            await writes.append_plan_event(connection, event)
    with pytest.raises(UnknownIncidentError, match="'i9'"):
        async with connection.begin_nested():
            await writes.append_incident_event(connection, resolved)


async def test_an_aborted_plan_leaves_its_epoch_to_the_next_one(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))
    given_up = plan("p1", "", START, job_id="a", epoch=1, layout=layout_with(shares=(2, 1)))
    taken = plan("p2", "", START, job_id="a", epoch=1, layout=layout_with(shares=(3, 1)))
    await writes.record_plan(connection, given_up)
    await writes.append_plan_event(connection, PlanEventRecord(plan_id="p1", state=PlanState.ABORTED, at=START))

    await writes.record_plan(connection, taken)
    await writes.append_plan_event(connection, PlanEventRecord(plan_id="p2", state=PlanState.COMMITTED, at=START))

    known = await reads.get_job(connection, "a")
    assert known is not None
    assert (known.epoch, known.layout) == (1, taken.layout)


async def test_two_plans_cannot_be_committed_for_one_epoch(connection: AsyncConnection) -> None:
    await writes.register_job(connection, job("a", LLAMA_TOKEN))
    for plan_id in ("p1", "p2"):
        await writes.record_plan(connection, plan(plan_id, "", START, job_id="a", epoch=1, layout=FULL))
    commits = [PlanEventRecord(plan_id=plan_id, state=PlanState.COMMITTED, at=START) for plan_id in ("p1", "p2")]

    assert await writes.append_plan_event(connection, commits[0])
    assert not await writes.append_plan_event(connection, commits[0])
    with pytest.raises(IntegrityError, match="job_layouts"):
        await writes.append_plan_event(connection, commits[1])


def state(job_id: str, version: int, save_id: str, **more: Any) -> WorkingStateRecord:
    document = {"of": [save_id, version, 1e-9]}
    return WorkingStateRecord(job_id=job_id, version=version, save_id=save_id, document=document, **more)


async def test_how_a_job_stands_is_replaced_by_who_knows_what_was_there_and_gone_with_its_end(
    connection: AsyncConnection,
) -> None:
    for job_id in ("a", "b"):
        await writes.register_job(connection, job(job_id, LLAMA_TOKEN))
    first = state("a", 1, "x", seats={0: {"at": 1}, 7: {"at": 1}})
    other, newer = state("b", 1, "y"), state("a", 2, "x", seats={7: {"at": 2}})

    assert (await reads.load_jobs(connection, ["a"]))["a"].state is None
    await writes.save_working_states(connection, [first, other])
    for _ in range(2):  # the answer to the first may have been lost
        await writes.save_working_states(connection, [newer])
    for stale in (first, state("a", 2, "z"), state("a", 4, "x")):
        with pytest.raises(StaleStateError, match="'a'"):
            await writes.save_working_states(connection, [stale])
    with pytest.raises(UnknownJobError, match="'nobody'"):
        async with connection.begin_nested():
            await writes.save_working_states(connection, [state("nobody", 1, "x")])

    loaded = await reads.load_jobs(connection, ["a", "b", "nobody"])
    assert loaded["a"].state == dataclasses.replace(newer, seats={0: {"at": 1}, 7: {"at": 2}})
    assert loaded["b"].state == other

    await writes.set_job_state(connection, "a", JobState.FINISHED, START)
    assert (await reads.load_jobs(connection, ["a", "b"])).keys() == {"b"}
    assert (await count(connection, "job_state"), await count(connection, "job_seats")) == (1, 0)


async def test_rollups_count_once(connection: AsyncConnection) -> None:
    first = [rollup(number) for number in range(4)]

    assert await writes.insert_rollups(connection, first) == 4
    assert await writes.insert_rollups(connection, [*first, rollup(4)]) == 1
    assert await writes.insert_rollups(connection, []) == 0


async def test_a_rollup_reads_back_as_it_was_written_even_when_the_loss_blew_up(connection: AsyncConnection) -> None:
    diverged = rollup(1)._replace(loss=math.nan, wall_seconds_max=math.inf)
    silent = rollup(2)._replace(loss=None)
    await writes.insert_rollups(connection, [rollup(0), diverged, silent])

    columns = ", ".join(RollupRecord._fields)
    rows = (await connection.execute(text(f"SELECT {columns} FROM rank_rollups ORDER BY rank"))).mappings().all()

    assert RollupRecord(**rows[0]) == rollup(0)
    assert math.isnan(rows[1]["loss"])
    assert rows[1]["wall_seconds_max"] == math.inf
    assert rows[2]["loss"] is None


@pytest.mark.parametrize("name", ["", "NULL", 'a "b" \\ {c,d}', "größe\n\t'", "{}"])
async def test_names_in_rollups_are_written_as_they_are(connection: AsyncConnection, name: str) -> None:
    written = [rollup(number)._replace(node=name, device=name + name) for number in range(2)]
    await writes.insert_rollups(connection, written)

    columns = ", ".join(RollupRecord._fields)
    rows = (await connection.execute(text(f"SELECT {columns} FROM rank_rollups ORDER BY rank"))).mappings().all()
    assert [RollupRecord(**row) for row in rows] == written


async def test_many_rollups_fit_into_one_call(connection: AsyncConnection) -> None:
    many = [rollup(0)._replace(rank=number) for number in range(5000)]

    assert await writes.insert_rollups(connection, many) == 5000


def snapshot(next_offset: int, *, partition: int = 0, job_id: str = "a") -> SnapshotRecord:
    return SnapshotRecord("observations", partition, job_id, next_offset, next_offset.to_bytes(4, "big"))


async def refused(connection: AsyncConnection, *snapshots: SnapshotRecord) -> list[SnapshotRecord]:
    return await writes.save_snapshots(connection, snapshots, consumer_group="detector", encoding="detector/1")


async def test_a_snapshot_is_replaced_by_a_newer_one_and_never_by_an_older_one(connection: AsyncConnection) -> None:
    assert await refused(connection, snapshot(10)) == []
    assert await refused(connection, snapshot(20), snapshot(30, job_id="b")) == []
    assert await refused(connection, snapshot(20)) == []
    assert await refused(connection, snapshot(15), snapshot(31, job_id="b")) == [snapshot(15)]

    found = await writes.load_snapshots(connection, consumer_group="detector", topic="observations", partitions=[0])
    assert found == [snapshot(20), snapshot(31, job_id="b")]


async def test_snapshots_are_loaded_by_partition_and_forgotten_by_job(connection: AsyncConnection) -> None:
    kept = [snapshot(1, partition=number, job_id=name) for number, name in [(0, "a"), (1, "b"), (1, "c")]]
    assert await refused(connection, *kept) == []
    load = functools.partial(writes.load_snapshots, connection, consumer_group="detector", topic="observations")

    of_one = await load(partitions=[1])
    forgotten = await writes.delete_snapshots(
        connection, consumer_group="detector", topic="observations", job_ids=["b", "unknown"]
    )

    assert [each.job_id for each in of_one] == ["b", "c"]
    assert forgotten == 1
    assert [each.job_id for each in await load(partitions=[1, 0])] == ["a", "c"]


def message(event_id: str) -> OutboxRecord:
    return OutboxRecord(event_id=event_id, topic="plans", key="a", value=b"x")


async def test_the_outbox_gives_records_in_order_and_keeps_them_when_sending_failed(engine: AsyncEngine) -> None:
    async with engine.begin() as filling:
        for event_id in ("e1", "e2", "e3"):
            assert await writes.enqueue_outbox(filling, message(event_id))
        assert not await writes.enqueue_outbox(filling, message("e2"))

    async with engine.connect() as failing:
        assert await writes.take_outbox(failing, limit=2) == [message("e1"), message("e2")]
    async with engine.begin() as sending:
        assert await writes.take_outbox(sending, limit=2) == [message("e1"), message("e2")]
    async with engine.begin() as sending:
        assert await writes.take_outbox(sending) == [message("e3")]


async def test_a_message_of_a_transaction_that_fails_is_never_sent(engine: AsyncEngine) -> None:
    async with engine.connect() as abandoned:
        await writes.enqueue_outbox(abandoned, message("e1"))

    async with engine.begin() as sending:
        assert await writes.take_outbox(sending) == []


async def test_old_rollups_are_pruned_batch_by_batch_and_newer_ones_stay(
    engine: AsyncEngine, fresh_database_url: str
) -> None:
    old = [rollup(number)._replace(started_at=START - timedelta(days=1)) for number in range(5)]
    async with engine.begin() as connection:
        await writes.insert_rollups(connection, [*old, rollup(6), rollup(7)])

    assert list(prune_rollups(fresh_database_url, START, batch_rows=2)) == [2, 2, 1]

    async with engine.connect() as connection:
        assert await count(connection, "rank_rollups") == 2
