"""How processes ended, and failures that are the program's and no node's.

An incident may turn out to be of another kind than it looked: a death is told before its cause. What the program did
wrong is counted for no node.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_CURRENT_INCIDENTS = """
SELECT i.incident_id, i.job_id, i.verdict_id, coalesce(k.reference, i.kind) AS kind,
       CASE WHEN r.at IS NULL THEN 'open' ELSE 'resolved' END AS state,
       (SELECT coalesce(array_agg(rank ORDER BY rank), '{}')
        FROM incident_culprits WHERE incident_id = i.incident_id) AS ranks,
       (SELECT coalesce(array_agg(DISTINCT node ORDER BY node), '{}')
        FROM incident_culprits WHERE incident_id = i.incident_id) AS nodes,
       i.first_iteration,
       coalesce((SELECT throughput FROM incident_events WHERE incident_id = i.incident_id AND throughput IS NOT NULL
                 ORDER BY at DESC, recorded_at DESC LIMIT 1), i.throughput) AS throughput,
       coalesce((SELECT max(lost_seconds) FROM incident_events
                 WHERE incident_id = i.incident_id AND lost_seconds IS NOT NULL), 0) AS lost_seconds,
       i.opened_at, r.at AS resolved_at,
       (SELECT coalesce(array_agg(plan_id ORDER BY proposed_at, plan_id), '{}')
        FROM plans WHERE incident_id = i.incident_id) AS plan_ids,
       (SELECT coalesce(array_agg(detail ORDER BY at, recorded_at), '{}')
        FROM incident_events WHERE incident_id = i.incident_id AND kind = 'note') AS notes
FROM incidents AS i
LEFT JOIN incident_events AS r ON r.incident_id = i.incident_id AND r.kind = 'resolved' AND r.reference = ''
LEFT JOIN incident_events AS k
       ON k.incident_id = i.incident_id AND k.kind = 'cause' AND k.reference = 'program_error'
"""

_INCIDENT_NODES = """
SELECT i.incident_id, i.job_id, i.kind, i.opened_at, i.lost_seconds / cardinality(i.nodes) AS lost_seconds, n.node
FROM current_incidents AS i CROSS JOIN LATERAL unnest(i.nodes) AS n (node)
WHERE i.kind <> 'program_error'
"""

_RANK_INCARNATIONS = """
SELECT r.job_id, r.rank, r.incarnation, r.node, r.device, r.registered_at AS started_at,
       coalesce(v.decided_at, r.replaced_at) AS ended_at,
       CASE WHEN x.last_line <> '' AND NOT x.lost_peer THEN 'program_error' ELSE v.kind END AS ended_by,
       v.verdict_id, r.replaced_by,
       CASE WHEN r.replaced_at < v.decided_at THEN 0
            ELSE extract(epoch FROM r.replaced_at - v.decided_at) END::double precision AS seconds_to_replacement
FROM (
    SELECT job_id, rank, incarnation, node, device, registered_at, lead(incarnation) OVER later AS replaced_by,
           lead(registered_at) OVER later AS replaced_at
    FROM ranks WINDOW later AS (PARTITION BY job_id, rank ORDER BY incarnation)
) AS r
LEFT JOIN (
    SELECT DISTINCT ON (job_id, c.rank, c.incarnation) job_id, c.rank, c.incarnation, verdict_id, kind, decided_at
    FROM verdicts JOIN verdict_culprits AS c USING (verdict_id)
    WHERE kind IN ('fail_stop', 'hang', 'program_error')
    ORDER BY job_id, c.rank, c.incarnation, decided_at, verdict_id
) AS v ON v.job_id = r.job_id AND v.rank = r.rank AND v.incarnation = r.incarnation
LEFT JOIN rank_exits AS x ON x.job_id = r.job_id AND x.rank = r.rank AND x.incarnation = r.incarnation
"""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "rank_exits",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("code", sa.Integer(), nullable=False),
        sa.Column("signal", sa.Integer(), nullable=False),
        sa.Column("last_line", sa.Text(), nullable=False),
        sa.Column("lost_peer", sa.Boolean(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "recorded_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_rank_exits_job_id")),
        sa.PrimaryKeyConstraint("job_id", "rank", "incarnation", name=op.f("pk_rank_exits")),
    )
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON rank_exits "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    op.execute("ALTER TABLE rank_exits ENABLE ROW LEVEL SECURITY")
    op.execute(
        "CREATE POLICY of_tenant ON rank_exits FOR SELECT TO evenkeel_reader "
        "USING (job_id IN (SELECT job_id FROM jobs))"
    )
    op.execute("CREATE POLICY service ON rank_exits TO evenkeel_service USING (true) WITH CHECK (true)")
    op.execute("GRANT SELECT ON rank_exits TO evenkeel_reader, evenkeel_service")
    op.execute("GRANT INSERT ON rank_exits TO evenkeel_service")
    # Replaced views keep their rights.
    views = {
        "current_incidents": _CURRENT_INCIDENTS,
        "incident_nodes": _INCIDENT_NODES,
        "rank_incarnations": _RANK_INCARNATIONS,
    }
    for name, query in views.items():
        op.execute(f"CREATE OR REPLACE VIEW {name} WITH (security_invoker = true) AS {query}")


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
