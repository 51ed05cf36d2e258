"""Tables of verdicts, incidents and plans."""

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def _recorded_at() -> "sa.Column[datetime]":
    return sa.Column(
        "recorded_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
    )


def _failures() -> None:
    op.create_table(
        "verdicts",
        sa.Column("verdict_id", sa.Text(), primary_key=True),
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("throughput", sa.Double(), nullable=False),
        sa.Column("throughput_margin", sa.Double(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("first_iteration", sa.BigInteger(), nullable=False),
        sa.Column("decided_iteration", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("evidence", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        _recorded_at(),
    )
    op.create_index(None, "verdicts", ["job_id", "decided_at", "verdict_id"])
    op.create_index(None, "verdicts", ["decided_at", "verdict_id"])
    op.create_table(
        "incidents",
        sa.Column("incident_id", sa.Text(), primary_key=True),
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), nullable=False),
        sa.Column("verdict_id", sa.Text(), sa.ForeignKey("verdicts.verdict_id"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("first_iteration", sa.BigInteger(), nullable=False),
        sa.Column("throughput", sa.Double(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        _recorded_at(),
    )
    op.create_index(None, "incidents", ["job_id", "opened_at", "incident_id"])
    op.create_index(None, "incidents", ["opened_at", "incident_id"])
    op.create_table(
        "verdict_culprits",
        sa.Column("verdict_id", sa.Text(), sa.ForeignKey("verdicts.verdict_id"), primary_key=True),
        sa.Column("rank", sa.Integer(), primary_key=True),
        sa.Column("incarnation", sa.Integer(), primary_key=True),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
    )
    op.create_table(
        "incident_culprits",
        sa.Column("incident_id", sa.Text(), sa.ForeignKey("incidents.incident_id"), primary_key=True),
        sa.Column("rank", sa.Integer(), primary_key=True),
        sa.Column("incarnation", sa.Integer(), primary_key=True),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
    )
    op.create_index(None, "incident_culprits", ["node"])
    op.create_table(
        "incident_events",
        sa.Column("incident_id", sa.Text(), sa.ForeignKey("incidents.incident_id"), primary_key=True),
        sa.Column("kind", sa.Text(), primary_key=True),
        sa.Column("reference", sa.Text(), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("throughput", sa.Double(), nullable=True),
        sa.Column("lost_seconds", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        _recorded_at(),
    )
    # The largest account of what was lost, and the newest throughput, are the last entries of an index.
    op.create_index(
        "ix_incident_events_lost_seconds",
        "incident_events",
        ["incident_id", "lost_seconds"],
        postgresql_where="lost_seconds IS NOT NULL",
    )
    op.create_index(
        "ix_incident_events_throughput",
        "incident_events",
        ["incident_id", "at", "recorded_at"],
        postgresql_include=["throughput"],
        postgresql_where="throughput IS NOT NULL",
    )


def _plans() -> None:
    op.create_table(
        "plans",
        sa.Column("plan_id", sa.Text(), primary_key=True),
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), nullable=False),
        sa.Column("incident_id", sa.Text(), sa.ForeignKey("incidents.incident_id"), nullable=True),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("layout", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("idle_seconds", sa.Double(), nullable=False),
        sa.Column("predicted_seconds", sa.Double(), nullable=False),
        sa.Column("cost_seconds", sa.Double(), nullable=False),
        sa.Column("proportional_bound", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("solve_seconds", sa.Double(), nullable=False),
        sa.Column("proposed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("throughputs", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        _recorded_at(),
    )
    op.create_index(None, "plans", ["incident_id"])
    op.create_index(None, "plans", ["job_id", "proposed_at", "plan_id"])
    op.create_index(None, "plans", ["proposed_at", "plan_id"])
    op.create_table(
        "job_layouts",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("epoch", sa.BigInteger(), primary_key=True),
        sa.Column("layout", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("plan_id", sa.Text(), sa.ForeignKey("plans.plan_id"), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        _recorded_at(),
    )
    op.create_table(
        "plan_actions",
        sa.Column("plan_id", sa.Text(), sa.ForeignKey("plans.plan_id"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("lever", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("gain_seconds", sa.Double(), nullable=False),
    )
    op.create_table(
        "plan_alternatives",
        sa.Column("plan_id", sa.Text(), sa.ForeignKey("plans.plan_id"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("predicted_seconds", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )
    op.create_table(
        "plan_events",
        sa.Column("plan_id", sa.Text(), sa.ForeignKey("plans.plan_id"), primary_key=True),
        sa.Column("state", sa.Text(), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_iteration", sa.BigInteger(), nullable=True),
        sa.Column("measured_seconds", sa.Double(), nullable=True),
        sa.Column("decision", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        _recorded_at(),
        sa.CheckConstraint(
            "state IN ('proposed', 'committed', 'applied', 'measured', 'aborted', 'advised')",
            name="state",
        ),
    )


def upgrade() -> None:
    """Apply."""
    _failures()
    _plans()
