"""Jobs and the processes of their ranks."""

import hmac
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document, layout_to_document, model_from_document, model_to_document
from evenkeel.history.errors import JobConflictError, UnknownJobError
from evenkeel.history.records import DEFAULT_TENANT, JobRecord, RankExitRecord, RankRecord
from evenkeel.history.tables.fleet import JobEventRow, JobLayoutRow, JobRow, JobSecretRow, RankExitRow
from evenkeel.history.vocabulary import JobState
from evenkeel.history.writes._rows import add_row
from evenkeel.history.writes.working_states import forget_working_state

_COLUMNS = {
    "job_id": "text",
    "rank": "integer",
    "incarnation": "integer",
    "node": "text",
    "device": "text",
    "address": "text",
    "process_id": "bigint",
    "registered_at": "timestamptz",
    "can_reshape": "boolean",
}
# Arrays, one a column: a statement has at most 65,535 parameters, and a text of its own for every number of them.
_RECORDS = f"""
unnest({", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in _COLUMNS.items())}) AS r ({", ".join(_COLUMNS)})
"""
_ADD_NODES = text(f"""
INSERT INTO nodes (node, first_seen_at)
SELECT node, min(registered_at) FROM {_RECORDS} GROUP BY node ORDER BY node ON CONFLICT DO NOTHING
""")  # noqa: S608 - constant words only
_ADD_DEVICES = text(f"""
INSERT INTO devices (node, device, first_seen_at)
SELECT node, device, min(registered_at) FROM {_RECORDS} GROUP BY node, device ORDER BY node, device
ON CONFLICT DO NOTHING
""")  # noqa: S608 - constant words only
_ADD_RANKS = text(f"""
INSERT INTO ranks ({", ".join(_COLUMNS)}) SELECT r.* FROM {_RECORDS}
ON CONFLICT DO NOTHING RETURNING job_id, rank, incarnation
""")  # noqa: S608 - constant words only
_MOVE = text(f"""
INSERT INTO rank_moves (job_id, rank, incarnation, address, process_id, at)
SELECT job_id, rank, incarnation, r.address, r.process_id, r.registered_at
FROM {_RECORDS} JOIN current_ranks AS c USING (job_id, rank, incarnation)
WHERE (c.address, c.process_id) <> (r.address, r.process_id)
RETURNING job_id, rank, incarnation
""")  # noqa: S608 - constant words only
"""Of processes that are known at another address, or under another process id."""


async def register_job(connection: AsyncConnection, job: JobRecord) -> bool:
    """Add a job with its layout of epoch 0 and its token.

    Returns:
        True when it is new; False when the same job is registered already, whatever its epoch is by now.

    Raises:
        JobConflictError: The id is taken by a job with another model, layout, token or tenant.
    """
    tenant = job.tenant or DEFAULT_TENANT
    is_new = await add_row(
        connection,
        JobRow,
        job,
        tenant=tenant,
        model=model_to_document(job.model),
        num_devices=len(job.layout.ranks),
    )
    if not is_new:
        await _require_same(connection, job, tenant)
        return False
    await add_row(connection, JobSecretRow, job)
    layout = layout_to_document(job.layout)
    await add_row(connection, JobLayoutRow, job, epoch=0, layout=layout, plan_id=None, at=job.registered_at)
    await _append_state(connection, job.job_id, JobState.RUNNING, job.registered_at, "registered")
    return True


async def _require_same(connection: AsyncConnection, job: JobRecord, tenant: str) -> None:
    known = (
        await connection.execute(
            select(JobRow.tenant, JobRow.model, JobLayoutRow.layout, JobSecretRow.job_token)
            .join(JobLayoutRow, (JobLayoutRow.job_id == JobRow.job_id) & (JobLayoutRow.epoch == 0))
            .join(JobSecretRow, JobSecretRow.job_id == JobRow.job_id)
            .where(JobRow.job_id == job.job_id)
        )
    ).one()
    if not hmac.compare_digest(known.job_token.encode(), job.job_token.encode()):
        raise JobConflictError(job.job_id, "token")
    if known.tenant != tenant:
        raise JobConflictError(job.job_id, "tenant")
    if layout_from_document(known.layout) != job.layout:
        raise JobConflictError(job.job_id, "layout")
    if model_from_document(known.model) != job.model:
        raise JobConflictError(job.job_id, "model")


async def set_job_state(
    connection: AsyncConnection, job_id: str, state: JobState, at: datetime, detail: str = ""
) -> bool:
    """Append the state a job is in now. Nothing leaves FINISHED.

    Returns:
        True when it is a change.

    Raises:
        UnknownJobError: No such job.
    """
    # States line up under a lock; a row lock would need the right to update history, which nobody has.
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(job_id, 0))))
    if await connection.scalar(select(JobRow.job_id).where(JobRow.job_id == job_id)) is None:
        raise UnknownJobError(job_id)
    newest = await connection.scalar(
        select(JobEventRow.state).where(JobEventRow.job_id == job_id).order_by(JobEventRow.job_event_id.desc()).limit(1)
    )
    if newest in (state, JobState.FINISHED):
        return False
    await _append_state(connection, job_id, state, at, detail)
    if state is JobState.FINISHED:
        await forget_working_state(connection, job_id)
    return True


async def _append_state(connection: AsyncConnection, job_id: str, state: JobState, at: datetime, detail: str) -> None:
    await connection.execute(insert(JobEventRow).values(job_id=job_id, state=state.value, at=at, detail=detail))


async def register_ranks(connection: AsyncConnection, ranks: Sequence[RankRecord]) -> list[bool]:
    """Add processes of ranks, and their nodes and devices when they are new; one that is known moves to its address.

    A handful of statements for any number of processes of any number of jobs.

    Args:
        connection: In a transaction.
        ranks: The processes, each at most once.

    Returns:
        For each whether it is new or has moved; False when this (job, rank, incarnation) is known where it is.

    Raises:
        UnknownJobError: One of the jobs does not exist.
    """
    job_ids = sorted({rank.job_id for rank in ranks})
    known = set(await connection.scalars(select(JobRow.job_id).where(JobRow.job_id.in_(job_ids))))
    for job_id in job_ids:
        if job_id not in known:
            raise UnknownJobError(job_id)
    columns = {name: [getattr(rank, name) for rank in ranks] for name in _COLUMNS}
    # In order, so that transactions which add the same nodes wait for one another and not in a circle.
    for statement in (_ADD_NODES, _ADD_DEVICES):
        await connection.execute(statement, columns)
    news = {tuple(row) for row in await connection.execute(_ADD_RANKS, columns)}
    if len(news) < len(ranks):
        news |= {tuple(row) for row in await connection.execute(_MOVE, columns)}
    return [(rank.job_id, rank.rank, rank.incarnation) in news for rank in ranks]


async def record_exit(connection: AsyncConnection, one: RankExitRecord) -> bool:
    """Add how a process ended.

    Returns:
        True when it is new; False when an end of this (job, rank, incarnation) is known.

    Raises:
        UnknownJobError: No such job.
    """
    return await add_row(connection, RankExitRow, one)
