"""The views of incidents and plans as fast over a year as over a day.

What a query does not ask for is not computed: values of one row are subqueries of their own, and states are joined by
primary key. The newest account of an incident is the first entry of an index.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
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
       coalesce((SELECT lost_seconds FROM incident_events WHERE incident_id = i.incident_id AND lost_seconds IS NOT NULL
                 ORDER BY at DESC, recorded_at DESC LIMIT 1), 0) AS lost_seconds,
       i.opened_at, r.at AS resolved_at,
       (SELECT coalesce(array_agg(plan_id ORDER BY proposed_at, plan_id), '{}')
        FROM plans WHERE incident_id = i.incident_id) AS plan_ids,
       (SELECT coalesce(array_agg(detail ORDER BY at, recorded_at), '{}')
        FROM incident_events WHERE incident_id = i.incident_id AND kind = 'note') AS notes
FROM incidents AS i
LEFT JOIN incident_events AS r ON r.incident_id = i.incident_id AND r.kind = 'resolved' AND r.reference = ''
"""

_CURRENT_PLANS = """
SELECT p.plan_id, p.job_id, p.incident_id, p.mode, p.epoch,
       CASE WHEN d.at IS NOT NULL THEN 'advised' WHEN x.at IS NOT NULL THEN 'aborted'
            WHEN m.at IS NOT NULL THEN 'measured' WHEN a.at IS NOT NULL THEN 'applied'
            WHEN c.at IS NOT NULL THEN 'committed' ELSE 'proposed' END AS state,
       coalesce(d.at, x.at, m.at, a.at, c.at, p.proposed_at) AS at,
       (SELECT coalesce(string_agg(lever, ' + ' ORDER BY number), '')
        FROM plan_actions WHERE plan_id = p.plan_id) AS levers,
       p.layout, p.idle_seconds, p.predicted_seconds, m.measured_seconds, p.cost_seconds, p.proportional_bound,
       p.reason, p.solve_seconds, p.proposed_at, c.at AS committed_at, a.at AS applied_at, a.first_iteration,
       c.decision, coalesce(d.detail, x.detail, m.detail, a.detail, c.detail, '') AS detail, p.throughputs
FROM plans AS p
LEFT JOIN plan_events AS c ON c.plan_id = p.plan_id AND c.state = 'committed'
LEFT JOIN plan_events AS a ON a.plan_id = p.plan_id AND a.state = 'applied'
LEFT JOIN plan_events AS m ON m.plan_id = p.plan_id AND m.state = 'measured'
LEFT JOIN plan_events AS x ON x.plan_id = p.plan_id AND x.state = 'aborted'
LEFT JOIN plan_events AS d ON d.plan_id = p.plan_id AND d.state = 'advised'
"""


def upgrade() -> None:
    """Apply."""
    for column in ("lost_seconds", "throughput"):
        op.create_index(
            f"ix_incident_events_{column}",
            "incident_events",
            ["incident_id", "at", "recorded_at"],
            postgresql_include=[column],
            postgresql_where=f"{column} IS NOT NULL",
        )
    # Replaced views keep their rights.
    for name, query in {"current_incidents": _CURRENT_INCIDENTS, "current_plans": _CURRENT_PLANS}.items():
        op.execute(f"CREATE OR REPLACE VIEW {name} WITH (security_invoker = true) AS {query}")


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
