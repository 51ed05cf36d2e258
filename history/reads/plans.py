"""Plans as they stand."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document, throughputs_from_document
from evenkeel.history.reads.by_job import ByJob, by_job
from evenkeel.history.reads.paging import PagedQuery
from evenkeel.history.records import ActionRecord, AlternativeRecord, PlanEffect, PlanRecord, PlanStatus
from evenkeel.history.vocabulary import PlanMode, PlanState

_PLANS = """
SELECT x.*,
    (SELECT coalesce(jsonb_agg(jsonb_build_object('lever', a.lever, 'description', a.description,
                                                  'gain_seconds', a.gain_seconds) ORDER BY a.number), '[]')
     FROM plan_actions AS a WHERE a.plan_id = x.plan_id) AS actions,
    (SELECT coalesce(jsonb_agg(jsonb_build_object('name', a.name, 'predicted_seconds', a.predicted_seconds,
                                                  'reason', a.reason) ORDER BY a.number), '[]')
     FROM plan_alternatives AS a WHERE a.plan_id = x.plan_id) AS alternatives
FROM current_plans AS x
"""
_ONE = text(_PLANS + "WHERE x.plan_id = :plan_id")
_UNFINISHED = text(
    _PLANS
    + """
WHERE x.job_id = ANY(:job_ids) AND x.state IN ('proposed', 'committed', 'applied') ORDER BY x.proposed_at, x.plan_id
"""
)

_EFFECTS = text(
    """
SELECT x.job_id, x.predicted_seconds, x.measured_seconds,
    ARRAY(SELECT a.lever FROM plan_actions AS a WHERE a.plan_id = x.plan_id ORDER BY a.lever) AS levers
FROM current_plans AS x
WHERE x.job_id = ANY(:job_ids) AND x.measured_seconds IS NOT NULL ORDER BY x.proposed_at, x.plan_id
"""
)

_PLANNED_FOR = text(
    """
SELECT l.job_id, l.epoch, p.throughputs FROM job_layouts AS l JOIN plans AS p USING (plan_id)
WHERE l.job_id = ANY(:job_ids) AND p.throughputs IS NOT NULL
"""
)

_RUNNING_SINCE = text(
    """
SELECT p.job_id, max(e.at) AS at FROM plans AS p JOIN plan_events AS e ON e.plan_id = p.plan_id AND e.state = 'applied'
WHERE p.job_id = ANY(:job_ids) GROUP BY p.job_id
"""
)


def _plan(row: Row[Any]) -> PlanStatus:
    return PlanStatus(
        plan=PlanRecord(
            plan_id=row.plan_id,
            job_id=row.job_id,
            incident_id=row.incident_id,
            mode=PlanMode(row.mode),
            epoch=row.epoch,
            layout=layout_from_document(row.layout),
            actions=tuple(ActionRecord(**action) for action in row.actions),
            alternatives=tuple(AlternativeRecord(**alternative) for alternative in row.alternatives),
            idle_seconds=row.idle_seconds,
            predicted_seconds=row.predicted_seconds,
            cost_seconds=row.cost_seconds,
            proportional_bound=row.proportional_bound,
            reason=row.reason,
            solve_seconds=row.solve_seconds,
            proposed_at=row.proposed_at,
            throughputs=throughputs_from_document(row.throughputs),
        ),
        state=PlanState(row.state),
        at=row.at,
        first_iteration=row.first_iteration,
        measured_seconds=row.measured_seconds,
        decision=row.decision,
        detail=row.detail,
    )


list_plans = PagedQuery(query=_PLANS, item_of=_plan, at="proposed_at", item_id="plan_id").page
"""Plans, newest first."""


async def get_plan(connection: AsyncConnection, plan_id: str) -> PlanStatus | None:
    """One plan, or None."""
    row = (await connection.execute(_ONE, {"plan_id": plan_id})).first()
    return None if row is None else _plan(row)


async def unfinished_plans(connection: AsyncConnection, job_ids: Sequence[str]) -> ByJob[PlanStatus]:
    """Plans of jobs that are neither measured nor aborted, oldest first."""
    return by_job(await connection.execute(_UNFINISHED, {"job_ids": job_ids}), _plan)


async def measured_effects(connection: AsyncConnection, job_ids: Sequence[str]) -> ByJob[PlanEffect]:
    """What came of the measured plans of jobs, oldest first."""
    rows = await connection.execute(_EFFECTS, {"job_ids": job_ids})
    return by_job(rows, lambda row: PlanEffect(row.predicted_seconds, row.measured_seconds, tuple(row.levers)))


async def planned_throughputs(
    connection: AsyncConnection, job_ids: Sequence[str]
) -> ByJob[tuple[int, dict[int, float]]]:
    """Epochs that were decided, each with the throughputs it was planned for; those without a record are left out."""
    rows = await connection.execute(_PLANNED_FOR, {"job_ids": job_ids})
    return by_job(rows, lambda row: (row.epoch, throughputs_from_document(row.throughputs) or {}))


async def running_since(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, datetime]:
    """When one of its plans was last seen to run, by job; without those of which none was."""
    return {row.job_id: row.at for row in await connection.execute(_RUNNING_SINCE, {"job_ids": job_ids})}
