"""What a job's end settles in its history, where nobody went on with the job: incidents, and plans decided for it."""

from datetime import datetime

from evenkeel.history.records import IncidentEventRecord, PlanEventRecord, RestartRecord
from evenkeel.history.vocabulary import IncidentEventKind, PlanState


def loose_ends(record: RestartRecord, at: datetime, detail: str) -> list[IncidentEventRecord | PlanEventRecord]:
    """The ends of all that is open in a job's history.

    Args:
        record: What the history says of the job; its plans are decided ones.
        at: When the job ended.
        detail: Why they end; one line for a person.
    """
    resolved = [
        IncidentEventRecord(
            incident_id=incident.incident_id,
            kind=IncidentEventKind.RESOLVED,
            at=at,
            lost_seconds=incident.lost_seconds,
            detail=detail,
        )
        for incident in record.incidents
    ]
    ended = [
        PlanEventRecord(plan_id=status.plan.plan_id, state=PlanState.ABORTED, at=at, detail=detail)
        for status in record.plans
        if status.state is PlanState.COMMITTED
    ]
    return [*resolved, *ended]
