"""Processes that register again, from another address, and where each is now."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_CURRENT_RANKS = """
SELECT r.job_id, r.rank, r.incarnation, r.node, r.device, coalesce(m.address, r.address) AS address,
       coalesce(m.process_id, r.process_id) AS process_id, r.registered_at, m.at AS moved_at, r.can_reshape
FROM ranks AS r
LEFT JOIN LATERAL (
    SELECT address, process_id, at FROM rank_moves
    WHERE job_id = r.job_id AND rank = r.rank AND incarnation = r.incarnation
    ORDER BY rank_move_id DESC LIMIT 1
) AS m ON true
"""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "rank_moves",
        sa.Column("rank_move_id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("process_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "recorded_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "rank", "incarnation"],
            ["ranks.job_id", "ranks.rank", "ranks.incarnation"],
            name=op.f("fk_rank_moves_job_id"),
        ),
        sa.PrimaryKeyConstraint("rank_move_id", name=op.f("pk_rank_moves")),
    )
    op.create_index(
        op.f("ix_rank_moves_job_id_rank_incarnation_rank_move_id"),
        "rank_moves",
        ["job_id", "rank", "incarnation", "rank_move_id"],
    )
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON rank_moves "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    op.execute("ALTER TABLE rank_moves ENABLE ROW LEVEL SECURITY")
    op.execute(
        "CREATE POLICY of_tenant ON rank_moves FOR SELECT TO evenkeel_reader "
        "USING (job_id IN (SELECT job_id FROM jobs))"
    )
    op.execute("CREATE POLICY service ON rank_moves TO evenkeel_service USING (true) WITH CHECK (true)")
    op.execute(f"CREATE VIEW current_ranks WITH (security_invoker = true) AS {_CURRENT_RANKS}")
    op.execute("GRANT SELECT ON rank_moves, current_ranks TO evenkeel_reader, evenkeel_service")
    op.execute("GRANT INSERT ON rank_moves TO evenkeel_service")
    op.execute("GRANT USAGE ON SEQUENCE rank_moves_rank_move_id_seq TO evenkeel_service")


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
