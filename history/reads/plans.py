"""Plans as they stand."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_from_document, throughputs_from_document
from evenkeel.history.reads._rows import record_of
from evenkeel.history.reads.paging import PagedQuery
from evenkeel.history.records import ActionRecord, AlternativeRecord, PlanRecord, PlanStatus
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
_SOME = text(_PLANS + "WHERE x.plan_id = ANY(:plan_ids)")


def _plan(row: Row[Any]) -> PlanStatus:
    plan = record_of(
        PlanRecord,
        row,
        mode=PlanMode(row.mode),
        layout=layout_from_document(row.layout),
        actions=tuple(ActionRecord(**action) for action in row.actions),
        alternatives=tuple(AlternativeRecord(**alternative) for alternative in row.alternatives),
        throughputs=throughputs_from_document(row.throughputs),
    )
    return record_of(PlanStatus, row, plan=plan, state=PlanState(row.state))


list_plans = PagedQuery(query=_PLANS, item_of=_plan, at="proposed_at", item_id="plan_id").page
"""Plans, newest first."""


async def get_plan(connection: AsyncConnection, plan_id: str) -> PlanStatus | None:
    """One plan, or None."""
    return (await plans_by_id(connection, [plan_id])).get(plan_id)


async def plans_by_id(connection: AsyncConnection, plan_ids: Sequence[str]) -> dict[str, PlanStatus]:
    """Those of the plans that there are, by id."""
    rows = await connection.execute(_SOME, {"plan_ids": list(plan_ids)})
    return {row.plan_id: _plan(row) for row in rows}
