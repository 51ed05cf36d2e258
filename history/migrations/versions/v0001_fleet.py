"""Tables of jobs, of their processes, and of what ranks measured."""

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def _recorded_at() -> "sa.Column[datetime]":
    return sa.Column(
        "recorded_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
    )


def _fleet() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("num_devices", sa.Integer(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        _recorded_at(),
    )
    op.create_index(None, "jobs", ["registered_at", "job_id"])
    op.create_index(None, "jobs", ["tenant"])
    op.create_table(
        "nodes",
        sa.Column("node", sa.Text(), primary_key=True),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "devices",
        sa.Column("node", sa.Text(), sa.ForeignKey("nodes.node"), primary_key=True),
        sa.Column("device", sa.Text(), primary_key=True),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "job_events",
        sa.Column("job_event_id", sa.BigInteger(), primary_key=True),
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        _recorded_at(),
    )
    op.create_index(None, "job_events", ["job_id", "job_event_id"])
    op.create_table(
        "job_secrets",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("job_token", sa.Text(), nullable=False),
    )
    op.create_table(
        "ranks",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("rank", sa.Integer(), primary_key=True),
        sa.Column("incarnation", sa.Integer(), primary_key=True),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("process_id", sa.BigInteger(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("can_reshape", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        _recorded_at(),
        sa.ForeignKeyConstraint(["node", "device"], ["devices.node", "devices.device"]),
    )
    op.create_index(None, "ranks", ["node", "device"])


def _processes() -> None:
    op.create_table(
        "rank_moves",
        sa.Column("rank_move_id", sa.BigInteger(), primary_key=True),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("process_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        _recorded_at(),
        sa.ForeignKeyConstraint(
            ["job_id", "rank", "incarnation"],
            ["ranks.job_id", "ranks.rank", "ranks.incarnation"],
            name=op.f("fk_rank_moves_job_id"),
        ),
    )
    op.create_index(None, "rank_moves", ["job_id", "rank", "incarnation", "rank_move_id"])
    op.create_table(
        "rank_exits",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("rank", sa.Integer(), primary_key=True),
        sa.Column("incarnation", sa.Integer(), primary_key=True),
        sa.Column("code", sa.Integer(), nullable=False),
        sa.Column("signal", sa.Integer(), nullable=False),
        sa.Column("last_line", sa.Text(), nullable=False),
        sa.Column("lost_peer", sa.Boolean(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        _recorded_at(),
    )


def _streams() -> None:
    op.create_table(
        "detector_snapshots",
        sa.Column("consumer_group", sa.Text(), primary_key=True),
        sa.Column("topic", sa.Text(), primary_key=True),
        sa.Column("partition", sa.Integer(), primary_key=True),
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
    )
    op.create_table(
        "outbox",
        sa.Column("outbox_id", sa.BigInteger(), primary_key=True),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("headers", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        _recorded_at(),
        sa.UniqueConstraint("event_id"),
    )
    op.create_table(
        "rank_rollups",
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("rank", sa.Integer(), primary_key=True),
        sa.Column("incarnation", sa.Integer(), primary_key=True),
        sa.Column("epoch", sa.BigInteger(), primary_key=True),
        sa.Column("first_iteration", sa.BigInteger(), primary_key=True),
        sa.Column("stop_iteration", sa.BigInteger(), nullable=False),
        sa.Column("num_iterations", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("wall_seconds", sa.Double(), nullable=False),
        sa.Column("wall_seconds_min", sa.Double(), nullable=False),
        sa.Column("wall_seconds_max", sa.Double(), nullable=False),
        sa.Column("forward_seconds", sa.Double(), nullable=False),
        sa.Column("backward_seconds", sa.Double(), nullable=False),
        sa.Column("optimizer_seconds", sa.Double(), nullable=False),
        sa.Column("data_seconds", sa.Double(), nullable=False),
        sa.Column("tensor_wait_seconds", sa.Double(), nullable=False),
        sa.Column("pipeline_wait_seconds", sa.Double(), nullable=False),
        sa.Column("gradient_wait_seconds", sa.Double(), nullable=False),
        sa.Column("vote_wait_seconds", sa.Double(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("sum_of_squares", sa.Double(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=False),
        _recorded_at(),
    )
    op.create_index(None, "rank_rollups", ["node", "started_at"])
    op.create_index(None, "rank_rollups", ["started_at"])
    op.create_table(
        "tenant_grants",
        sa.Column("role_name", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), primary_key=True),
    )


def upgrade() -> None:
    """Apply."""
    _fleet()
    _processes()
    _streams()
