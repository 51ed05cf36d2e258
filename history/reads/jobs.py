"""Jobs as the history knows them, and all that a scheduler needs to go on with them after a restart."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document, model_from_document
from evenkeel.history.reads.incidents import job_verdicts, open_incidents
from evenkeel.history.reads.paging import PagedQuery
from evenkeel.history.reads.plans import measured_effects, planned_throughputs, running_since, unfinished_plans
from evenkeel.history.records import JobStatus, RankExitRecord, RankRecord, RestartRecord
from evenkeel.history.tables import JobLayoutRow, JobSecretRow, RankExitRow
from evenkeel.history.vocabulary import JobState
from evenkeel.layouts.layout import Layout

_JOBS = """
SELECT x.*, j.model,
    (SELECT detail FROM job_events WHERE job_id = x.job_id ORDER BY job_event_id DESC LIMIT 1) AS detail,
    (SELECT coalesce(jsonb_agg(to_jsonb(r) ORDER BY r.rank), '[]')
     FROM (SELECT DISTINCT ON (rank) rank, incarnation, node, device, address, process_id, registered_at, can_reshape
           FROM current_ranks WHERE job_id = x.job_id ORDER BY rank, incarnation DESC) AS r) AS ranks
FROM current_jobs AS x JOIN jobs AS j USING (job_id)
"""
_ONE = text(_JOBS + "WHERE x.job_id = :job_id")
_EARLIER = text(
    "SELECT to_jsonb(r) AS process FROM current_ranks AS r WHERE job_id = :job_id AND EXISTS ("
    "SELECT FROM ranks AS newer "
    "WHERE newer.job_id = r.job_id AND newer.rank = r.rank AND newer.incarnation > r.incarnation) "
    "ORDER BY rank, incarnation"
)
_TOKENS = text("SELECT job_id, job_token FROM job_secrets WHERE job_id = ANY (CAST(:job_ids AS text[]))")
_UNFINISHED_TOKENS = text(
    "SELECT job_id, job_token FROM job_secrets JOIN current_jobs USING (job_id) WHERE state <> 'finished'"
)
_REGISTERED = text(
    "SELECT job_id, rank, incarnation FROM ranks "
    "JOIN unnest(CAST(:job_ids AS text[]), CAST(:ranks AS integer[]), CAST(:incarnations AS integer[])) "
    "AS asked (job_id, rank, incarnation) USING (job_id, rank, incarnation)"
)
_UNFINISHED = text("SELECT job_id FROM current_jobs WHERE state <> 'finished' ORDER BY registered_at, job_id")


def _rank(job_id: str, document: Mapping[str, Any]) -> RankRecord:
    return RankRecord(
        job_id=job_id,
        rank=document["rank"],
        incarnation=document["incarnation"],
        node=document["node"],
        device=document["device"],
        address=document["address"],
        process_id=document["process_id"],
        registered_at=datetime.fromisoformat(document["registered_at"]),
        can_reshape=document["can_reshape"],
    )


def _job(row: Row[Any]) -> JobStatus:
    return JobStatus(
        job_id=row.job_id,
        tenant=row.tenant,
        name=row.name,
        model=model_from_document(row.model),
        layout=layout_from_document(row.layout),
        epoch=row.epoch,
        state=JobState(row.state),
        num_devices=row.num_devices,
        registered_at=row.registered_at,
        ranks=tuple(_rank(row.job_id, document) for document in row.ranks),
        detail=row.detail,
    )


list_jobs = PagedQuery(query=_JOBS, item_of=_job, at="registered_at", item_id="job_id").page
"""Jobs, newest first."""


async def get_job(connection: AsyncConnection, job_id: str) -> JobStatus | None:
    """One job, or None."""
    row = (await connection.execute(_ONE, {"job_id": job_id})).first()
    return None if row is None else _job(row)


async def job_token(connection: AsyncConnection, job_id: str) -> str | None:
    """A job's token, or None for an unknown job; for the scheduler only, reader roles are refused."""
    token: str | None = await connection.scalar(select(JobSecretRow.job_token).where(JobSecretRow.job_id == job_id))
    return token


async def job_tokens(connection: AsyncConnection, job_ids: Sequence[str] | None = None) -> dict[str, str]:
    """Tokens of those of some jobs that are registered, by job; None: of all that have not finished."""
    if job_ids is None:
        rows = await connection.execute(_UNFINISHED_TOKENS)
    else:
        rows = await connection.execute(_TOKENS, {"job_ids": list(job_ids)})
    return {row.job_id: row.job_token for row in rows}


async def registered_processes(
    connection: AsyncConnection, asked: Sequence[tuple[str, int, int]]
) -> set[tuple[str, int, int]]:
    """Those of some processes (job, rank, incarnation) that have registered."""
    job_ids, ranks, incarnations = (list(column) for column in zip(*asked, strict=True))
    rows = await connection.execute(_REGISTERED, {"job_ids": job_ids, "ranks": ranks, "incarnations": incarnations})
    return {(row.job_id, row.rank, row.incarnation) for row in rows}


async def job_layouts(connection: AsyncConnection, job_id: str) -> dict[int, Layout]:
    """The layout of every decided epoch of a job, by epoch."""
    rows = await connection.execute(
        select(JobLayoutRow.epoch, JobLayoutRow.layout)
        .where(JobLayoutRow.job_id == job_id)
        .order_by(JobLayoutRow.epoch)
    )
    return {row.epoch: layout_from_document(row.layout) for row in rows}


async def earlier_processes(connection: AsyncConnection, job_id: str) -> tuple[RankRecord, ...]:
    """The processes of a job's ranks that registered before the newest ones, by rank and incarnation."""
    rows = await connection.execute(_EARLIER, {"job_id": job_id})
    return tuple(_rank(job_id, row.process) for row in rows)


async def rank_exits(connection: AsyncConnection, job_id: str) -> tuple[RankExitRecord, ...]:
    """How processes of a job ended, by rank and incarnation."""
    columns = [getattr(RankExitRow, field.name) for field in fields(RankExitRecord)]
    query = select(*columns).where(RankExitRow.job_id == job_id).order_by(RankExitRow.rank, RankExitRow.incarnation)
    return tuple(RankExitRecord(**row._mapping) for row in await connection.execute(query))


async def unfinished_jobs(connection: AsyncConnection) -> list[str]:
    """Ids of all unfinished jobs, oldest first."""
    return list(await connection.scalars(_UNFINISHED))


async def load_job(connection: AsyncConnection, job_id: str) -> RestartRecord | None:
    """An unfinished job with all that is needed to go on with it; None for one that is unknown or finished.

    Use a transaction of isolation level REPEATABLE READ when someone else may be writing.
    """
    job = await get_job(connection, job_id)
    if job is None or job.state is JobState.FINISHED:
        return None
    token = await job_token(connection, job_id)
    assert token is not None, f"job {job_id} was registered without a token"
    return RestartRecord(
        job=job,
        job_token=token,
        layouts=await job_layouts(connection, job_id),
        verdicts=await job_verdicts(connection, job_id),
        incidents=await open_incidents(connection, job_id),
        plans=await unfinished_plans(connection, job_id),
        effects=await measured_effects(connection, job_id),
        planned_for=await planned_throughputs(connection, job_id),
        running_since=await running_since(connection, job_id),
        earlier=await earlier_processes(connection, job_id),
        exits=await rank_exits(connection, job_id),
    )
