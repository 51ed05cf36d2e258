"""Plans, what they do, what they beat, and what became of them."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from evenkeel.history.tables.base import Base, Count, IntegerKey, RecordedAt, TextKey


class PlanRow(Base):
    """A plan as it was proposed; ``plan_events`` says what became of it."""

    __tablename__ = "plans"
    __table_args__ = (
        Index(None, "proposed_at", "plan_id"),
        Index(None, "job_id", "proposed_at", "plan_id"),
        Index(None, "incident_id"),
    )

    plan_id: Mapped[TextKey]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"))
    incident_id: Mapped[str | None] = mapped_column(ForeignKey("incidents.incident_id"))
    mode: Mapped[str]
    epoch: Mapped[Count]
    layout: Mapped[dict[str, Any]]
    idle_seconds: Mapped[float]
    predicted_seconds: Mapped[float]
    cost_seconds: Mapped[float]
    proportional_bound: Mapped[float]
    reason: Mapped[str]
    solve_seconds: Mapped[float]
    proposed_at: Mapped[datetime]
    recorded_at: Mapped[RecordedAt]
    throughputs: Mapped[dict[str, Any] | None]


class PlanActionRow(Base):
    """One lever that a plan pulls."""

    __tablename__ = "plan_actions"

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.plan_id"), primary_key=True)
    number: Mapped[IntegerKey]
    lever: Mapped[str]
    description: Mapped[str]
    gain_seconds: Mapped[float]


class PlanAlternativeRow(Base):
    """One layout that was weighed and lost."""

    __tablename__ = "plan_alternatives"

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.plan_id"), primary_key=True)
    number: Mapped[IntegerKey]
    name: Mapped[str]
    predicted_seconds: Mapped[float]
    reason: Mapped[str]


class PlanEventRow(Base):
    """A plan entered a state; each state at most once."""

    __tablename__ = "plan_events"
    __table_args__ = (
        CheckConstraint(
            "state IN ('proposed', 'committed', 'applied', 'measured', 'aborted', 'advised')", name="state"
        ),
    )

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.plan_id"), primary_key=True)
    state: Mapped[TextKey]
    at: Mapped[datetime]
    first_iteration: Mapped[Count | None]
    measured_seconds: Mapped[float | None]
    decision: Mapped[dict[str, Any] | None]
    detail: Mapped[str] = mapped_column(server_default=text("''"))
    recorded_at: Mapped[RecordedAt]
