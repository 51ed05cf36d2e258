"""Who is in charge, and how far those in charge have read.

A term is never given twice. It is part of a unique index, so that taking a lease over waits for every transaction that
has looked at it, and none that began under an earlier term can commit afterwards; renewing it waits for nobody.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
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
    op.execute("GRANT SELECT, INSERT, UPDATE ON leases, intake_offsets TO evenkeel_service")


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
