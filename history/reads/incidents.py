"""Incidents as they stand, and verdicts."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.documents import evidence_from_documents
from evenkeel.history.reads._rows import record_of
from evenkeel.history.reads.paging import PagedQuery
from evenkeel.history.records import CulpritRecord, IncidentState, VerdictRecord

_CULPRITS = """
    (SELECT coalesce(jsonb_agg(jsonb_build_object('rank', c.rank, 'incarnation', c.incarnation, 'node', c.node,
                                                  'device', c.device) ORDER BY c.rank, c.incarnation), '[]')
     FROM {table} AS c WHERE c.{key} = x.{key}) AS culprits
"""
_INCIDENTS = f"""
SELECT x.incident_id, x.job_id, x.verdict_id, x.kind, x.first_iteration, x.throughput, x.lost_seconds, x.opened_at,
       x.resolved_at, x.plan_ids, x.notes, {_CULPRITS.format(table="incident_culprits", key="incident_id")}
FROM current_incidents AS x
"""  # noqa: S608 - constant names only
_ONE = text(_INCIDENTS + "WHERE x.incident_id = :incident_id")
_VERDICTS = f"""
SELECT x.verdict_id, x.job_id, x.kind, x.throughput, x.throughput_margin, x.confidence, x.first_iteration,
       x.decided_iteration, x.decided_at, x.evidence, {_CULPRITS.format(table="verdict_culprits", key="verdict_id")}
FROM verdicts AS x
"""  # noqa: S608 - constant names only


def _culprits(documents: Sequence[dict[str, Any]]) -> tuple[CulpritRecord, ...]:
    return tuple(CulpritRecord(**document) for document in documents)


def _incident(row: Row[Any]) -> IncidentState:
    plan_ids, notes = tuple(row.plan_ids), tuple(row.notes)
    return record_of(IncidentState, row, culprits=_culprits(row.culprits), plan_ids=plan_ids, notes=notes)


list_incidents = PagedQuery(query=_INCIDENTS, item_of=_incident, at="opened_at", item_id="incident_id").page
"""Incidents, newest first."""


async def get_incident(connection: AsyncConnection, incident_id: str) -> IncidentState | None:
    """One incident, or None."""
    row = (await connection.execute(_ONE, {"incident_id": incident_id})).first()
    return None if row is None else _incident(row)


def _verdict(row: Row[Any]) -> VerdictRecord:
    evidence = evidence_from_documents(row.evidence)
    return record_of(VerdictRecord, row, culprits=_culprits(row.culprits), evidence=evidence)


list_verdicts = PagedQuery(query=_VERDICTS, item_of=_verdict, at="decided_at", item_id="verdict_id").page
"""Verdicts, newest first: also those that lead to no incident."""
