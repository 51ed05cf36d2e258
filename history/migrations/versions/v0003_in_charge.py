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


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("name", "term"),
    )
    op.create_table(
        "intake_offsets",
        sa.Column("reader", sa.Text(), primary_key=True),
        sa.Column("topic", sa.Text(), primary_key=True),
        sa.Column("partition", sa.Integer(), primary_key=True),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "job_state",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("save_id", sa.Text(), nullable=False),
        sa.Column("document", postgresql.JSONB(), nullable=False),
        sa.Column("plan_ids", postgresql.ARRAY(sa.Text()), nullable=False),
    )
    op.create_table(
        "job_seats",
        sa.Column("job_id", sa.Text(), sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("rank", sa.Integer(), primary_key=True),
        sa.Column("seat", postgresql.JSONB(), nullable=False),
    )
