"""Plans, and the states they go through."""

import dataclasses

from sqlalchemy import literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import layout_to_document, throughputs_to_document
from evenkeel.history.records import IncidentEventRecord, PlanEventRecord, PlanRecord
from evenkeel.history.tables import JobLayoutRow, PlanActionRow, PlanAlternativeRow, PlanEventRow, PlanRow
from evenkeel.history.vocabulary import IncidentEventKind, PlanState
from evenkeel.history.writes._missing import named_errors
from evenkeel.history.writes.incidents import append_incident_event


async def record_plan(connection: AsyncConnection, plan: PlanRecord) -> bool:
    """Add a plan with its actions and alternatives, as PROPOSED; its incident gets an event.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError: No such job.
        UnknownIncidentError: It names an incident that was never opened.
    """
    if not await _insert_plan(connection, plan):
        return False
    if plan.actions:
        await connection.execute(
            insert(PlanActionRow),
            [
                {"plan_id": plan.plan_id, "number": number, **dataclasses.asdict(action)}
                for number, action in enumerate(plan.actions, start=1)
            ],
        )
    if plan.alternatives:
        await connection.execute(
            insert(PlanAlternativeRow),
            [
                {"plan_id": plan.plan_id, "number": number, **dataclasses.asdict(alternative)}
                for number, alternative in enumerate(plan.alternatives, start=1)
            ],
        )
    await append_plan_event(
        connection, PlanEventRecord(plan_id=plan.plan_id, state=PlanState.PROPOSED, at=plan.proposed_at)
    )
    return True


async def _insert_plan(connection: AsyncConnection, plan: PlanRecord) -> bool:
    statement = (
        insert(PlanRow)
        .values(
            plan_id=plan.plan_id,
            job_id=plan.job_id,
            incident_id=plan.incident_id or None,
            mode=plan.mode.value,
            epoch=plan.epoch,
            layout=layout_to_document(plan.layout),
            idle_seconds=plan.idle_seconds,
            predicted_seconds=plan.predicted_seconds,
            cost_seconds=plan.cost_seconds,
            proportional_bound=plan.proportional_bound,
            reason=plan.reason,
            solve_seconds=plan.solve_seconds,
            proposed_at=plan.proposed_at,
            throughputs=throughputs_to_document(plan.throughputs),
        )
        .on_conflict_do_nothing()
        .returning(PlanRow.plan_id)
    )
    with named_errors(job_id=plan.job_id, incident_id=plan.incident_id):
        if (await connection.execute(statement)).first() is None:
            return False
    if plan.incident_id:
        await append_incident_event(
            connection,
            IncidentEventRecord(
                incident_id=plan.incident_id,
                kind=IncidentEventKind.PLAN,
                reference=plan.plan_id,
                at=plan.proposed_at,
                detail=plan.reason,
            ),
        )
    return True


async def append_plan_event(connection: AsyncConnection, event: PlanEventRecord) -> bool:
    """Add a state of a plan. COMMITTED also makes the plan's layout that of its epoch, in the same transaction.

    Returns:
        True when the plan had not been in this state.

    Raises:
        UnknownPlanError: No such plan.
        sqlalchemy.exc.IntegrityError: Another plan of the job is committed for the same epoch.
    """
    statement = (
        insert(PlanEventRow)
        .values(
            plan_id=event.plan_id,
            state=event.state.value,
            at=event.at,
            first_iteration=event.first_iteration,
            measured_seconds=event.measured_seconds,
            decision=None if event.decision is None else dict(event.decision),
            detail=event.detail,
        )
        .on_conflict_do_nothing()
        .returning(PlanEventRow.plan_id)
    )
    with named_errors(plan_id=event.plan_id):
        if (await connection.execute(statement)).first() is None:
            return False
    if event.state is PlanState.COMMITTED:
        decided = select(
            PlanRow.job_id, PlanRow.epoch, PlanRow.layout, PlanRow.plan_id, literal(event.at).label("at")
        ).where(PlanRow.plan_id == event.plan_id)
        await connection.execute(
            insert(JobLayoutRow).from_select(["job_id", "epoch", "layout", "plan_id", "at"], decided)
        )
    return True
