"""Jobs and the processes of their ranks."""

import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import get_type_hints

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document, layout_to_document, model_from_document, model_to_document
from evenkeel.history.errors import JobConflictError, UnknownJobError
from evenkeel.history.records import DEFAULT_TENANT, JobRecord, RankExitRecord, RankRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.history.writes._rows import add_row, values_of
from evenkeel.history.writes.working_states import forget_working_state

_SAME = text("""
SELECT j.tenant, j.model, l.layout, k.job_token
FROM jobs AS j JOIN job_layouts AS l USING (job_id) JOIN job_secrets AS k USING (job_id)
WHERE j.job_id = :job_id AND l.epoch = 0
""")
# States line up under a lock; a row lock would need the right to update history, which nobody has.
_LOCK_STATE = text("SELECT pg_advisory_xact_lock(hashtextextended(:job_id, 0))")
_STATE = text("SELECT state FROM job_events WHERE job_id = :job_id ORDER BY job_event_id DESC LIMIT 1")
_KNOWN = text("SELECT job_id FROM jobs WHERE job_id = ANY (CAST(:job_ids AS text[]))")
_TYPES = {str: "text", int: "bigint", bool: "boolean", datetime: "timestamptz"}
_COLUMNS = {name: _TYPES[kind] for name, kind in get_type_hints(RankRecord).items()}
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
    about = {"job_id": job.job_id}
    tenant, layout = job.tenant or DEFAULT_TENANT, layout_to_document(job.layout)
    registered = about | {
        "tenant": tenant,
        "name": job.name,
        "model": model_to_document(job.model),
        "num_devices": len(job.layout.ranks),
        "registered_at": job.registered_at,
    }
    if not await add_row(connection, "jobs", registered):
        await _require_same(connection, job, tenant)
        return False
    await add_row(connection, "job_secrets", about | {"job_token": job.job_token})
    await add_row(connection, "job_layouts", about | {"epoch": 0, "layout": layout, "at": job.registered_at})
    await _append_state(connection, job.job_id, JobState.RUNNING, job.registered_at, "registered")
    return True


async def _require_same(connection: AsyncConnection, job: JobRecord, tenant: str) -> None:
    known = (await connection.execute(_SAME, {"job_id": job.job_id})).one()
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
    await connection.execute(_LOCK_STATE, {"job_id": job_id})
    newest = await connection.scalar(_STATE, {"job_id": job_id})
    if newest is None:
        raise UnknownJobError(job_id)
    if newest in (state, JobState.FINISHED):
        return False
    await _append_state(connection, job_id, state, at, detail)
    if state is JobState.FINISHED:
        await forget_working_state(connection, job_id)
    return True


async def _append_state(connection: AsyncConnection, job_id: str, state: JobState, at: datetime, detail: str) -> None:
    await add_row(connection, "job_events", {"job_id": job_id, "state": state, "at": at, "detail": detail})


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
    known = set(await connection.scalars(_KNOWN, {"job_ids": job_ids}))
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
    return await add_row(connection, "rank_exits", values_of(one))
