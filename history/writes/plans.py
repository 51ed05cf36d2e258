"""Plans, and the states they go through."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_to_document, throughputs_to_document
from evenkeel.history.records import IncidentEventRecord, PlanEventRecord, PlanRecord
from evenkeel.history.vocabulary import IncidentEventKind, PlanState
from evenkeel.history.writes._rows import add_parts, add_row, values_of
from evenkeel.history.writes.incidents import append_incident_event

_DECIDE = text("""
INSERT INTO job_layouts (job_id, epoch, layout, plan_id, at)
SELECT job_id, epoch, layout, plan_id, :at FROM plans WHERE plan_id = :plan_id
""")


async def record_plan(connection: AsyncConnection, plan: PlanRecord) -> bool:
    """Add a plan with its actions and alternatives, as PROPOSED; its incident gets an event.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError: No such job.
        UnknownIncidentError: It names an incident that was never opened.
    """
    values = values_of(
        plan,
        incident_id=plan.incident_id or None,
        layout=layout_to_document(plan.layout),
        throughputs=throughputs_to_document(plan.throughputs),
    )
    if not await add_row(connection, "plans", values):
        return False
    if plan.incident_id:
        answered = IncidentEventRecord(
            incident_id=plan.incident_id,
            kind=IncidentEventKind.PLAN,
            reference=plan.plan_id,
            at=plan.proposed_at,
            detail=plan.reason,
        )
        await append_incident_event(connection, answered)
    await add_parts(connection, "plan_actions", plan.actions, is_numbered=True, plan_id=plan.plan_id)
    await add_parts(connection, "plan_alternatives", plan.alternatives, is_numbered=True, plan_id=plan.plan_id)
    proposed = PlanEventRecord(plan_id=plan.plan_id, state=PlanState.PROPOSED, at=plan.proposed_at)
    await append_plan_event(connection, proposed)
    return True


async def append_plan_event(connection: AsyncConnection, event: PlanEventRecord) -> bool:
    """Add a state of a plan. COMMITTED also makes the plan's layout that of its epoch, in the same transaction.

    Returns:
        True when the plan had not been in this state.

    Raises:
        UnknownPlanError: No such plan.
        sqlalchemy.exc.IntegrityError: Another plan of the job is committed for the same epoch.
    """
    is_new = await add_row(connection, "plan_events", values_of(event))
    if is_new and event.state is PlanState.COMMITTED:
        await connection.execute(_DECIDE, {"plan_id": event.plan_id, "at": event.at})
    return is_new
