"""Verdicts, incidents, and what happens to incidents."""

import dataclasses

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import evidence_to_documents
from evenkeel.history.records import IncidentEventRecord, IncidentRecord, VerdictRecord
from evenkeel.history.tables import (
    IncidentCulpritRow,
    IncidentEventRow,
    IncidentRow,
    VerdictCulpritRow,
    VerdictRow,
)
from evenkeel.history.writes._missing import named_errors


async def record_verdict(connection: AsyncConnection, verdict: VerdictRecord) -> bool:
    """Add a verdict with its culprits.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError: The verdict is about a job that never registered.
    """
    statement = (
        insert(VerdictRow)
        .values(
            verdict_id=verdict.verdict_id,
            job_id=verdict.job_id,
            kind=str(verdict.kind),
            throughput=verdict.throughput,
            throughput_margin=verdict.throughput_margin,
            confidence=verdict.confidence,
            first_iteration=verdict.first_iteration,
            decided_iteration=verdict.decided_iteration,
            decided_at=verdict.decided_at,
            evidence=evidence_to_documents(verdict.evidence),
        )
        .on_conflict_do_nothing()
        .returning(VerdictRow.verdict_id)
    )
    with named_errors(job_id=verdict.job_id):
        if (await connection.execute(statement)).first() is None:
            return False
    if verdict.culprits:
        await connection.execute(
            insert(VerdictCulpritRow).on_conflict_do_nothing(),
            [{"verdict_id": verdict.verdict_id, **dataclasses.asdict(culprit)} for culprit in verdict.culprits],
        )
    return True


async def open_incident(connection: AsyncConnection, incident: IncidentRecord) -> bool:
    """Add an incident with its culprits; its first verdict must be recorded.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError: No such job.
    """
    statement = (
        insert(IncidentRow)
        .values(
            incident_id=incident.incident_id,
            job_id=incident.job_id,
            verdict_id=incident.verdict_id,
            kind=str(incident.kind),
            first_iteration=incident.first_iteration,
            throughput=incident.throughput,
            opened_at=incident.opened_at,
        )
        .on_conflict_do_nothing()
        .returning(IncidentRow.incident_id)
    )
    with named_errors(job_id=incident.job_id):
        if (await connection.execute(statement)).first() is None:
            return False
    if incident.culprits:
        await connection.execute(
            insert(IncidentCulpritRow).on_conflict_do_nothing(),
            [{"incident_id": incident.incident_id, **dataclasses.asdict(culprit)} for culprit in incident.culprits],
        )
    return True


async def append_incident_event(connection: AsyncConnection, event: IncidentEventRecord) -> bool:
    """Add one event of an incident.

    Returns:
        True when its (kind, reference) is new to the incident.

    Raises:
        UnknownIncidentError: No such incident.
    """
    statement = (
        insert(IncidentEventRow)
        .values(
            incident_id=event.incident_id,
            kind=event.kind.value,
            reference=event.reference,
            at=event.at,
            throughput=event.throughput,
            lost_seconds=event.lost_seconds,
            detail=event.detail,
        )
        .on_conflict_do_nothing()
        .returning(IncidentEventRow.incident_id)
    )
    with named_errors(incident_id=event.incident_id):
        return (await connection.execute(statement)).first() is not None
