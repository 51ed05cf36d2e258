"""Verdicts, and the incidents they open."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from history.tables.base import Base, Count, IntegerKey, RecordedAt, TextKey


class VerdictRow(Base):
    """One finding of the detector."""

    __tablename__ = "verdicts"
    __table_args__ = (Index(None, "job_id", "decided_at"),)

    verdict_id: Mapped[TextKey]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"))
    kind: Mapped[str]
    throughput: Mapped[float]
    throughput_margin: Mapped[float]
    confidence: Mapped[float]
    first_iteration: Mapped[Count]
    decided_iteration: Mapped[Count]
    decided_at: Mapped[datetime]
    evidence: Mapped[list[dict[str, Any]]]
    recorded_at: Mapped[RecordedAt]


class VerdictCulpritRow(Base):
    """One process that a verdict accuses or clears."""

    __tablename__ = "verdict_culprits"

    verdict_id: Mapped[str] = mapped_column(ForeignKey("verdicts.verdict_id"), primary_key=True)
    rank: Mapped[IntegerKey]
    incarnation: Mapped[IntegerKey]
    node: Mapped[str]
    device: Mapped[str]


class IncidentRow(Base):
    """A failure, as its first verdict described it; the rest of its life is in ``incident_events``."""

    __tablename__ = "incidents"
    __table_args__ = (Index(None, "opened_at", "incident_id"), Index(None, "job_id", "opened_at", "incident_id"))

    incident_id: Mapped[TextKey]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"))
    verdict_id: Mapped[str] = mapped_column(ForeignKey("verdicts.verdict_id"))
    kind: Mapped[str]
    first_iteration: Mapped[Count]
    throughput: Mapped[float]
    opened_at: Mapped[datetime]
    recorded_at: Mapped[RecordedAt]


class IncidentCulpritRow(Base):
    """One process accused in an incident."""

    __tablename__ = "incident_culprits"
    __table_args__ = (Index(None, "node"),)

    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.incident_id"), primary_key=True)
    rank: Mapped[IntegerKey]
    incarnation: Mapped[IntegerKey]
    node: Mapped[str]
    device: Mapped[str]


def _newest(column: str) -> Index:
    """Finds the newest event of an incident that says something about a column."""
    return Index(
        f"ix_incident_events_{column}",
        "incident_id",
        "at",
        "recorded_at",
        postgresql_include=[column],
        postgresql_where=text(f"{column} IS NOT NULL"),
    )


class IncidentEventRow(Base):
    """One thing that happened to an incident; unique by (incident, kind, reference)."""

    __tablename__ = "incident_events"
    __table_args__ = (_newest("lost_seconds"), _newest("throughput"))

    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.incident_id"), primary_key=True)
    kind: Mapped[TextKey]
    reference: Mapped[TextKey]
    at: Mapped[datetime]
    throughput: Mapped[float | None]
    lost_seconds: Mapped[float | None]
    detail: Mapped[str] = mapped_column(server_default=text("''"))
    recorded_at: Mapped[RecordedAt]
