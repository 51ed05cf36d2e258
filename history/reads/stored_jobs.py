"""All that a scheduler needs to go on with jobs; four queries, however many the jobs are."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document, model_from_document
from evenkeel.history.reads._rows import by_job, record_of
from evenkeel.history.reads.plans import plans_by_id
from evenkeel.history.records import JobRecord, PlanStatus, StoredJob
from evenkeel.history.stream_records import WorkingStateRecord

_JOBS = text("""
SELECT j.job_id, j.tenant, j.name, j.model, j.registered_at, k.job_token, s.version, s.save_id, s.document, s.plan_ids,
       ARRAY(SELECT v.verdict_id FROM verdicts AS v WHERE v.job_id = j.job_id) AS seen
FROM jobs AS j JOIN current_jobs AS c USING (job_id) JOIN job_secrets AS k USING (job_id)
LEFT JOIN job_state AS s USING (job_id)
WHERE j.job_id = ANY(:job_ids) AND c.state <> 'finished'
""")
_LAYOUTS = text("SELECT job_id, epoch, layout FROM job_layouts WHERE job_id = ANY(:job_ids) ORDER BY epoch")
_SEATS = text("SELECT job_id, rank, seat FROM job_seats WHERE job_id = ANY(:job_ids)")


async def load_jobs(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, StoredJob]:
    """Those of the jobs that are known and not finished, by id.

    Use a transaction of isolation level REPEATABLE READ when someone else may be writing.
    """
    wanted = {"job_ids": list(job_ids)}
    rows = (await connection.execute(_JOBS, wanted)).all()
    layouts = by_job(
        await connection.execute(_LAYOUTS, wanted), lambda row: (row.epoch, layout_from_document(row.layout))
    )
    seats = by_job(await connection.execute(_SEATS, wanted), lambda row: (row.rank, row.seat))
    plans = await plans_by_id(connection, [plan_id for row in rows for plan_id in row.plan_ids or ()])
    return {row.job_id: _stored(row, dict(layouts[row.job_id]), dict(seats[row.job_id]), plans) for row in rows}


def _stored(row: Row[Any], layouts: dict[int, Any], seats: dict[int, Any], plans: dict[str, PlanStatus]) -> StoredJob:
    state = None
    if row.version is not None:
        state = record_of(WorkingStateRecord, row, plan_ids=tuple(row.plan_ids), seats=seats)
    return StoredJob(
        record=record_of(JobRecord, row, model=model_from_document(row.model), layout=layouts[0]),
        layouts=layouts,
        seen=frozenset(row.seen),
        state=state,
        plans={plan_id: plans[plan_id] for plan_id in row.plan_ids or ()},
    )
