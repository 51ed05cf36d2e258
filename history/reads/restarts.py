"""All that a scheduler needs to go on with jobs after a restart; a dozen queries, however many the jobs are."""

from collections.abc import Sequence
from dataclasses import fields

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document
from evenkeel.history.reads.by_job import ByJob, by_job
from evenkeel.history.reads.incidents import all_verdicts, open_incidents
from evenkeel.history.reads.jobs import jobs_by_id, rank_from_document
from evenkeel.history.reads.plans import measured_effects, planned_throughputs, running_since, unfinished_plans
from evenkeel.history.records import RankExitRecord, RankRecord, RestartRecord
from evenkeel.history.tables import JobLayoutRow, JobSecretRow, RankExitRow
from evenkeel.history.vocabulary import JobState
from evenkeel.layouts.layout import Layout

_EARLIER = text(
    "SELECT r.job_id, to_jsonb(r) AS process FROM current_ranks AS r WHERE job_id = ANY(:job_ids) AND EXISTS ("
    "SELECT FROM ranks AS newer "
    "WHERE newer.job_id = r.job_id AND newer.rank = r.rank AND newer.incarnation > r.incarnation) "
    "ORDER BY rank, incarnation"
)
_EXIT_COLUMNS = [getattr(RankExitRow, field.name) for field in fields(RankExitRecord)]


async def load_jobs(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, RestartRecord]:
    """Those of the jobs that are known and not finished, by id.

    Use a transaction of isolation level REPEATABLE READ when someone else may be writing.
    """
    jobs = await jobs_by_id(connection, job_ids)
    unfinished = [job_id for job_id, job in jobs.items() if job.state is not JobState.FINISHED]
    tokens = await _tokens(connection, unfinished)
    layouts = await _layouts(connection, unfinished)
    verdicts = await all_verdicts(connection, unfinished)
    incidents = await open_incidents(connection, unfinished)
    plans = await unfinished_plans(connection, unfinished)
    effects = await measured_effects(connection, unfinished)
    planned_for = await planned_throughputs(connection, unfinished)
    since = await running_since(connection, unfinished)
    earlier = await _earlier_processes(connection, unfinished)
    exits = await _exits(connection, unfinished)
    return {
        job_id: RestartRecord(
            job=jobs[job_id],
            job_token=tokens[job_id],
            layouts=dict(layouts[job_id]),
            verdicts=verdicts[job_id],
            incidents=incidents[job_id],
            plans=plans[job_id],
            effects=effects[job_id],
            planned_for=dict(planned_for[job_id]),
            running_since=since.get(job_id),
            earlier=earlier[job_id],
            exits=exits[job_id],
        )
        for job_id in unfinished
    }


async def _tokens(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, str]:
    query = select(JobSecretRow.job_id, JobSecretRow.job_token).where(JobSecretRow.job_id.in_(job_ids))
    return {row.job_id: row.job_token for row in await connection.execute(query)}


async def _layouts(connection: AsyncConnection, job_ids: Sequence[str]) -> ByJob[tuple[int, Layout]]:
    """The layout of every decided epoch."""
    query = (
        select(JobLayoutRow.job_id, JobLayoutRow.epoch, JobLayoutRow.layout)
        .where(JobLayoutRow.job_id.in_(job_ids))
        .order_by(JobLayoutRow.epoch)
    )
    return by_job(await connection.execute(query), lambda row: (row.epoch, layout_from_document(row.layout)))


async def _earlier_processes(connection: AsyncConnection, job_ids: Sequence[str]) -> ByJob[RankRecord]:
    """The processes of ranks that registered before the newest ones, by rank and incarnation."""
    rows = await connection.execute(_EARLIER, {"job_ids": job_ids})
    return by_job(rows, lambda row: rank_from_document(row.job_id, row.process))


async def _exits(connection: AsyncConnection, job_ids: Sequence[str]) -> ByJob[RankExitRecord]:
    """How processes ended, by rank and incarnation."""
    query = select(*_EXIT_COLUMNS).where(RankExitRow.job_id.in_(job_ids))
    rows = await connection.execute(query.order_by(RankExitRow.rank, RankExitRow.incarnation))
    return by_job(rows, lambda row: RankExitRecord(**row._mapping))
