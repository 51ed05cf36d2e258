"""Tables of verdicts, incidents and plans."""

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _recorded_at() -> "sa.Column[datetime]":
    return sa.Column(
        "recorded_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
    )


def _failures() -> None:
    op.create_table(
        "verdicts",
        sa.Column("verdict_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("throughput", sa.Double(), nullable=False),
        sa.Column("throughput_margin", sa.Double(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("first_iteration", sa.BigInteger(), nullable=False),
        sa.Column("decided_iteration", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("evidence", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        _recorded_at(),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_verdicts_job_id")),
        sa.PrimaryKeyConstraint("verdict_id", name=op.f("pk_verdicts")),
    )
    op.create_index("ix_verdicts_job_id_decided_at_verdict_id", "verdicts", ["job_id", "decided_at", "verdict_id"])
    op.create_index("ix_verdicts_decided_at_verdict_id", "verdicts", ["decided_at", "verdict_id"])
    op.create_table(
        "incidents",
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("verdict_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("first_iteration", sa.BigInteger(), nullable=False),
        sa.Column("throughput", sa.Double(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        _recorded_at(),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_incidents_job_id")),
        sa.ForeignKeyConstraint(["verdict_id"], ["verdicts.verdict_id"], name=op.f("fk_incidents_verdict_id")),
        sa.PrimaryKeyConstraint("incident_id", name=op.f("pk_incidents")),
    )
    op.create_index(
        op.f("ix_incidents_job_id_opened_at_incident_id"),
        "incidents",
        ["job_id", "opened_at", "incident_id"],
        unique=False,
    )
    op.create_index(op.f("ix_incidents_opened_at_incident_id"), "incidents", ["opened_at", "incident_id"], unique=False)
    op.create_table(
        "verdict_culprits",
        sa.Column("verdict_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["verdict_id"], ["verdicts.verdict_id"], name=op.f("fk_verdict_culprits_verdict_id")),
        sa.PrimaryKeyConstraint("verdict_id", "rank", "incarnation", name=op.f("pk_verdict_culprits")),
    )
    op.create_table(
        "incident_culprits",
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.incident_id"], name=op.f("fk_incident_culprits_incident_id")
        ),
        sa.PrimaryKeyConstraint("incident_id", "rank", "incarnation", name=op.f("pk_incident_culprits")),
    )
    op.create_index(op.f("ix_incident_culprits_node"), "incident_culprits", ["node"], unique=False)
    op.create_table(
        "incident_events",
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("throughput", sa.Double(), nullable=True),
        sa.Column("lost_seconds", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        _recorded_at(),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.incident_id"], name=op.f("fk_incident_events_incident_id")
        ),
        sa.PrimaryKeyConstraint("incident_id", "kind", "reference", name=op.f("pk_incident_events")),
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
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("incident_id", sa.Text(), nullable=True),
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
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.incident_id"], name=op.f("fk_plans_incident_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_plans_job_id")),
        sa.PrimaryKeyConstraint("plan_id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_incident_id"), "plans", ["incident_id"], unique=False)
    op.create_index(
        op.f("ix_plans_job_id_proposed_at_plan_id"), "plans", ["job_id", "proposed_at", "plan_id"], unique=False
    )
    op.create_index(op.f("ix_plans_proposed_at_plan_id"), "plans", ["proposed_at", "plan_id"], unique=False)
    op.create_table(
        "job_layouts",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("layout", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        _recorded_at(),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_job_layouts_job_id")),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.plan_id"], name=op.f("fk_job_layouts_plan_id")),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_job_layouts")),
    )
    op.create_table(
        "plan_actions",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lever", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("gain_seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.plan_id"], name=op.f("fk_plan_actions_plan_id")),
        sa.PrimaryKeyConstraint("plan_id", "number", name=op.f("pk_plan_actions")),
    )
    op.create_table(
        "plan_alternatives",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("predicted_seconds", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.plan_id"], name=op.f("fk_plan_alternatives_plan_id")),
        sa.PrimaryKeyConstraint("plan_id", "number", name=op.f("pk_plan_alternatives")),
    )
    op.create_table(
        "plan_events",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_iteration", sa.BigInteger(), nullable=True),
        sa.Column("measured_seconds", sa.Double(), nullable=True),
        sa.Column("decision", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        _recorded_at(),
        sa.CheckConstraint(
            "state IN ('proposed', 'committed', 'applied', 'measured', 'aborted', 'advised')",
            name=op.f("ck_plan_events_state"),
        ),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.plan_id"], name=op.f("fk_plan_events_plan_id")),
        sa.PrimaryKeyConstraint("plan_id", "state", name=op.f("pk_plan_events")),
    )


def upgrade() -> None:
    """Apply."""
    _failures()
    _plans()


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
