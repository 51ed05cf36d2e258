"""Verdicts, incidents, and what happens to incidents."""

from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import evidence_to_documents
from evenkeel.history.records import IncidentEventRecord, IncidentRecord, VerdictRecord
from evenkeel.history.writes._rows import add_parts, add_row, values_of


async def record_verdict(connection: AsyncConnection, verdict: VerdictRecord) -> bool:
    """Add a verdict with its culprits.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError: The verdict is about a job that never registered.
    """
    values = values_of(verdict, evidence=evidence_to_documents(verdict.evidence))
    is_new = await add_row(connection, "verdicts", values)
    if is_new:
        await add_parts(connection, "verdict_culprits", verdict.culprits, verdict_id=verdict.verdict_id)
    return is_new


async def open_incident(connection: AsyncConnection, incident: IncidentRecord) -> bool:
    """Add an incident with its culprits; its first verdict must be recorded.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError: No such job.
    """
    is_new = await add_row(connection, "incidents", values_of(incident))
    if is_new:
        await add_parts(connection, "incident_culprits", incident.culprits, incident_id=incident.incident_id)
    return is_new


async def append_incident_event(connection: AsyncConnection, event: IncidentEventRecord) -> bool:
    """Add one event of an incident.

    Returns:
        True when its (kind, reference) is new to the incident.

    Raises:
        UnknownIncidentError: No such incident.
    """
    return await add_row(connection, "incident_events", values_of(event))
