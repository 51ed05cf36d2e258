"""Plans, and the states they go through."""

from sqlalchemy import literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_to_document, throughputs_to_document
from evenkeel.history.records import IncidentEventRecord, PlanEventRecord, PlanRecord
from evenkeel.history.tables.fleet import JobLayoutRow
from evenkeel.history.tables.plans import PlanActionRow, PlanAlternativeRow, PlanEventRow, PlanRow
from evenkeel.history.vocabulary import IncidentEventKind, PlanState
from evenkeel.history.writes._rows import add_parts, add_row
from evenkeel.history.writes.incidents import append_incident_event


async def record_plan(connection: AsyncConnection, plan: PlanRecord) -> bool:
    """Add a plan with its actions and alternatives, as PROPOSED; its incident gets an event.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError: No such job.
        UnknownIncidentError: It names an incident that was never opened.
    """
    is_new = await add_row(
        connection,
        PlanRow,
        plan,
        incident_id=plan.incident_id or None,
        layout=layout_to_document(plan.layout),
        throughputs=throughputs_to_document(plan.throughputs),
    )
    if not is_new:
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
    await add_parts(connection, PlanActionRow, plan.actions, plan_id=plan.plan_id)
    await add_parts(connection, PlanAlternativeRow, plan.alternatives, plan_id=plan.plan_id)
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
    is_new = await add_row(connection, PlanEventRow, event)
    if is_new and event.state is PlanState.COMMITTED:
        decided = select(
            PlanRow.job_id, PlanRow.epoch, PlanRow.layout, PlanRow.plan_id, literal(event.at).label("at")
        ).where(PlanRow.plan_id == event.plan_id)
        await connection.execute(
            insert(JobLayoutRow).from_select(["job_id", "epoch", "layout", "plan_id", "at"], decided)
        )
    return is_new
