"""What incidents cost adds up, whoever asks.

An incident's accounts only grow, so the largest is the newest, whatever clocks said: a resolution has the time of its
verdict, and an account that was told before it the time of a scheduler that had waited for the database. An incident on
several nodes is counted for each of them, and its loss is shared among them. Times of several machines are compared
here and there, whose clocks need not agree: what comes out is never less than nothing.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_CURRENT_INCIDENTS = """
SELECT i.incident_id, i.job_id, i.verdict_id, i.kind,
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
"""

_INCIDENT_NODES = """
SELECT i.incident_id, i.job_id, i.kind, i.opened_at, i.lost_seconds / cardinality(i.nodes) AS lost_seconds, n.node
FROM current_incidents AS i CROSS JOIN LATERAL unnest(i.nodes) AS n (node)
"""

_RANK_INCARNATIONS = """
SELECT r.job_id, r.rank, r.incarnation, r.node, r.device, r.registered_at AS started_at,
       coalesce(v.decided_at, n.registered_at) AS ended_at, v.kind AS ended_by, v.verdict_id,
       n.incarnation AS replaced_by,
       CASE WHEN n.registered_at < v.decided_at THEN 0
            ELSE extract(epoch FROM n.registered_at - v.decided_at) END::double precision AS seconds_to_replacement
FROM ranks AS r
LEFT JOIN LATERAL (
    SELECT incarnation, registered_at FROM ranks
    WHERE job_id = r.job_id AND rank = r.rank AND incarnation > r.incarnation
    ORDER BY incarnation LIMIT 1
) AS n ON true
LEFT JOIN LATERAL (
    SELECT verdict_id, kind, decided_at FROM verdicts JOIN verdict_culprits AS c USING (verdict_id)
    WHERE job_id = r.job_id AND c.rank = r.rank AND c.incarnation = r.incarnation AND kind IN ('fail_stop', 'hang')
    ORDER BY decided_at LIMIT 1
) AS v ON true
"""

_LOST_TIME_BY_INCIDENT = """
SELECT incident_id, job_id, kind, ranks, opened_at, resolved_at,
       CASE WHEN resolved_at < opened_at THEN 0
            ELSE extract(epoch FROM resolved_at - opened_at) END::double precision AS open_seconds, lost_seconds
FROM current_incidents
"""

_PLAN_ACCURACY = """
SELECT plan_id, job_id, incident_id, mode, levers, idle_seconds, predicted_seconds, measured_seconds,
       measured_seconds / nullif(predicted_seconds, 0) - 1 AS prediction_error,
       CASE WHEN idle_seconds > 0 THEN idle_seconds - measured_seconds END AS gain_seconds, cost_seconds,
       CASE WHEN applied_at < committed_at THEN 0
            ELSE extract(epoch FROM applied_at - committed_at) END::double precision AS apply_seconds,
       proportional_bound, proposed_at
FROM current_plans WHERE state = 'measured'
"""

_VIEWS = {
    "current_incidents": _CURRENT_INCIDENTS,
    "incident_nodes": _INCIDENT_NODES,
    "rank_incarnations": _RANK_INCARNATIONS,
    "lost_time_by_incident": _LOST_TIME_BY_INCIDENT,
    "plan_accuracy": _PLAN_ACCURACY,
}


def upgrade() -> None:
    """Apply."""
    # The largest is the last entry of an index, as the newest was before.
    op.drop_index("ix_incident_events_lost_seconds", "incident_events")
    op.create_index(
        "ix_incident_events_lost_seconds",
        "incident_events",
        ["incident_id", "lost_seconds"],
        postgresql_where="lost_seconds IS NOT NULL",
    )
    # Replaced views keep their rights.
    for name, query in _VIEWS.items():
        op.execute(f"CREATE OR REPLACE VIEW {name} WITH (security_invoker = true) AS {query}")


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
