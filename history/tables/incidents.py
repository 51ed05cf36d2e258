"""Verdicts, and the incidents they open."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from evenkeel.history.tables.base import Base, Count, IntegerKey, RecordedAt, TextKey


class VerdictRow(Base):
    """One finding of the detector."""

    __tablename__ = "verdicts"
    __table_args__ = (Index(None, "decided_at", "verdict_id"), Index(None, "job_id", "decided_at", "verdict_id"))

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


class IncidentEventRow(Base):
    """One thing that happened to an incident; unique by (incident, kind, reference)."""

    __tablename__ = "incident_events"
    # They find the newest throughput of an incident, and its largest loss, which is the newest.
    __table_args__ = (
        Index(
            "ix_incident_events_throughput",
            "incident_id",
            "at",
            "recorded_at",
            postgresql_include=["throughput"],
            postgresql_where=text("throughput IS NOT NULL"),
        ),
        Index(
            "ix_incident_events_lost_seconds",
            "incident_id",
            "lost_seconds",
            postgresql_where=text("lost_seconds IS NOT NULL"),
        ),
    )

    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.incident_id"), primary_key=True)
    kind: Mapped[TextKey]
    reference: Mapped[TextKey]
    at: Mapped[datetime]
    throughput: Mapped[float | None]
    lost_seconds: Mapped[float | None]
    detail: Mapped[str] = mapped_column(server_default=text("''"))
    recorded_at: Mapped[RecordedAt]
