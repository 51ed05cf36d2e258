"""Jobs and the processes of their ranks."""

import hmac
from datetime import datetime

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document, layout_to_document, model_from_document, model_to_document
from evenkeel.history.errors import JobConflictError, UnknownJobError
from evenkeel.history.records import DEFAULT_TENANT, JobRecord, RankRecord
from evenkeel.history.tables import DeviceRow, JobEventRow, JobLayoutRow, JobRow, JobSecretRow, NodeRow, RankRow
from evenkeel.history.vocabulary import JobState

_MOVE = text("""
INSERT INTO rank_moves (job_id, rank, incarnation, address, process_id, at)
SELECT job_id, rank, incarnation, :address, :process_id, :at FROM current_ranks
WHERE job_id = :job_id AND rank = :rank AND incarnation = :incarnation
  AND (address, process_id) <> (:address, :process_id)
RETURNING rank_move_id
""")
"""Of a process that is known at another address, or under another process id."""


async def register_job(connection: AsyncConnection, job: JobRecord) -> bool:
    """Add a job with its layout of epoch 0 and its token.

    Returns:
        True when it is new; False when the same job is registered already, whatever its epoch is by now.

    Raises:
        JobConflictError: The id is taken by a job with another model, layout, token or tenant.
    """
    tenant = job.tenant or DEFAULT_TENANT
    inserted = await connection.execute(
        insert(JobRow)
        .values(
            job_id=job.job_id,
            tenant=tenant,
            name=job.name,
            model=model_to_document(job.model),
            num_devices=len(job.layout.ranks),
            registered_at=job.registered_at,
        )
        .on_conflict_do_nothing()
        .returning(JobRow.job_id)
    )
    if inserted.first() is None:
        await _require_same(connection, job, tenant)
        return False
    await connection.execute(insert(JobSecretRow).values(job_id=job.job_id, job_token=job.job_token))
    await connection.execute(
        insert(JobLayoutRow).values(
            job_id=job.job_id,
            epoch=0,
            layout=layout_to_document(job.layout),
            plan_id=None,
            at=job.registered_at,
        )
    )
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
    return True


async def _append_state(connection: AsyncConnection, job_id: str, state: JobState, at: datetime, detail: str) -> None:
    await connection.execute(insert(JobEventRow).values(job_id=job_id, state=state.value, at=at, detail=detail))


async def register_rank(connection: AsyncConnection, rank: RankRecord) -> bool:
    """Add a process of a rank, and its node and device when they are new; one that is known moves to its address.

    Returns:
        True when it is new or has moved; False when this (job, rank, incarnation) is known where it is.

    Raises:
        UnknownJobError: No such job.
    """
    if await connection.scalar(select(JobRow.job_id).where(JobRow.job_id == rank.job_id)) is None:
        raise UnknownJobError(rank.job_id)
    await connection.execute(
        insert(NodeRow).values(node=rank.node, first_seen_at=rank.registered_at).on_conflict_do_nothing()
    )
    await connection.execute(
        insert(DeviceRow)
        .values(node=rank.node, device=rank.device, first_seen_at=rank.registered_at)
        .on_conflict_do_nothing()
    )
    inserted = await connection.execute(
        insert(RankRow)
        .values(
            job_id=rank.job_id,
            rank=rank.rank,
            incarnation=rank.incarnation,
            node=rank.node,
            device=rank.device,
            address=rank.address,
            process_id=rank.process_id,
            registered_at=rank.registered_at,
            can_reshape=rank.can_reshape,
        )
        .on_conflict_do_nothing()
        .returning(RankRow.rank)
    )
    if inserted.first() is not None:
        return True
    moved = await connection.execute(
        _MOVE,
        {
            "job_id": rank.job_id,
            "rank": rank.rank,
            "incarnation": rank.incarnation,
            "address": rank.address,
            "process_id": rank.process_id,
            "at": rank.registered_at,
        },
    )
    return moved.first() is not None
