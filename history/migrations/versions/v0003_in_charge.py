"""Who is in charge, how far those in charge have read, and how each job stands.

A term is never given twice. It is part of a unique index, so that taking a lease over waits for every transaction that
has looked at it, and none that began under an earlier term can commit afterwards; renewing it waits for nobody. How a
job stands is one row and one for each rank, written in the transaction of the records that they come of.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
        sa.UniqueConstraint("name", "term", name=op.f("uq_leases_name_term")),
    )
    op.create_table(
        "intake_offsets",
        sa.Column("reader", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("reader", "topic", "partition", name=op.f("pk_intake_offsets")),
    )
    op.create_table(
        "job_state",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("save_id", sa.Text(), nullable=False),
        sa.Column("document", postgresql.JSONB(), nullable=False),
        sa.Column("plan_ids", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_job_state_job_id")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_state")),
    )
    op.create_table(
        "job_seats",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("seat", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_job_seats_job_id")),
        sa.PrimaryKeyConstraint("job_id", "rank", name=op.f("pk_job_seats")),
    )


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
