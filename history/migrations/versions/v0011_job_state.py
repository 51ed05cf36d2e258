"""How a job stands, as one row and one for each rank: who goes on with it decodes them.

Both are written in the transaction of the records that they come of, and replaced in place. Jobs that were begun before
have none and would begin anew as they were registered: finish them first.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
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
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON job_state, job_seats TO evenkeel_service")


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
