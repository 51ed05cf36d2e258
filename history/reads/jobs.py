"""Jobs as the history knows them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document, model_from_document
from evenkeel.history.reads._rows import record_of
from evenkeel.history.reads.paging import PagedQuery
from evenkeel.history.records import JobStatus, RankRecord
from evenkeel.history.vocabulary import JobState

_JOBS = """
SELECT x.*, j.model,
    (SELECT detail FROM job_events WHERE job_id = x.job_id ORDER BY job_event_id DESC LIMIT 1) AS detail,
    (SELECT coalesce(jsonb_agg(to_jsonb(r) ORDER BY r.rank), '[]')
     FROM (SELECT DISTINCT ON (rank) rank, incarnation, node, device, address, process_id, registered_at, can_reshape
           FROM current_ranks WHERE job_id = x.job_id ORDER BY rank, incarnation DESC) AS r) AS ranks
FROM current_jobs AS x JOIN jobs AS j USING (job_id)
"""
_ONE = text(_JOBS + "WHERE x.job_id = :job_id")
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
    """A process of a rank, from a row of ``current_ranks`` as JSON."""
    registered_at = datetime.fromisoformat(document["registered_at"])
    return RankRecord(**{**document, "job_id": job_id, "registered_at": registered_at})


def _job(row: Row[Any]) -> JobStatus:
    return record_of(
        JobStatus,
        row,
        model=model_from_document(row.model),
        layout=layout_from_document(row.layout),
        state=JobState(row.state),
        ranks=tuple(_rank(row.job_id, document) for document in row.ranks),
    )


list_jobs = PagedQuery(query=_JOBS, item_of=_job, at="registered_at", item_id="job_id").page
"""Jobs, newest first."""


async def get_job(connection: AsyncConnection, job_id: str) -> JobStatus | None:
    """One job, or None."""
    row = (await connection.execute(_ONE, {"job_id": job_id})).first()
    return None if row is None else _job(row)


async def job_token(connection: AsyncConnection, job_id: str) -> str | None:
    """A job's token, or None for an unknown job; for the scheduler only, reader roles are refused."""
    return (await job_tokens(connection, [job_id])).get(job_id)


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


async def unfinished_jobs(connection: AsyncConnection) -> list[str]:
    """Ids of all unfinished jobs, oldest first."""
    return list(await connection.scalars(_UNFINISHED))
