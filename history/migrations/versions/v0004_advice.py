"""Ranks whose loop cannot be reshaped, plans that are only advice, and the throughputs that a plan was made for."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_STATES = "'proposed', 'committed', 'applied', 'measured', 'aborted', 'advised'"

_CURRENT_PLANS = f"""
SELECT p.plan_id, p.job_id, p.incident_id, p.mode, p.epoch, e.state, e.at, a.levers, p.layout, p.idle_seconds,
       p.predicted_seconds, m.measured_seconds, p.cost_seconds, p.proportional_bound, p.reason, p.solve_seconds,
       p.proposed_at, m.committed_at, m.applied_at, m.first_iteration, m.decision, e.detail, p.throughputs
FROM plans AS p
CROSS JOIN LATERAL (
    SELECT state, at, detail FROM plan_events WHERE plan_id = p.plan_id
    ORDER BY array_position(ARRAY[{_STATES}], state) DESC LIMIT 1
) AS e
CROSS JOIN LATERAL (
    SELECT max(measured_seconds) AS measured_seconds, max(first_iteration) AS first_iteration,
           max(at) FILTER (WHERE state = 'committed') AS committed_at,
           max(at) FILTER (WHERE state = 'applied') AS applied_at,
           (array_agg(decision) FILTER (WHERE decision IS NOT NULL))[1] AS decision
    FROM plan_events WHERE plan_id = p.plan_id
) AS m
CROSS JOIN LATERAL (
    SELECT coalesce(string_agg(lever, ' + ' ORDER BY number), '') AS levers FROM plan_actions WHERE plan_id = p.plan_id
) AS a
"""  # noqa: S608 - constant words only

_CURRENT_INCIDENTS = """
SELECT i.incident_id, i.job_id, i.verdict_id, i.kind,
       CASE WHEN r.at IS NULL THEN 'open' ELSE 'resolved' END AS state,
       c.ranks, c.nodes, i.first_iteration, coalesce(t.throughput, i.throughput) AS throughput,
       coalesce(l.lost_seconds, 0) AS lost_seconds, i.opened_at, r.at AS resolved_at, p.plan_ids, n.notes
FROM incidents AS i
LEFT JOIN LATERAL (
    SELECT at FROM incident_events WHERE incident_id = i.incident_id AND kind = 'resolved'
) AS r ON true
LEFT JOIN LATERAL (
    SELECT throughput FROM incident_events WHERE incident_id = i.incident_id AND throughput IS NOT NULL
    ORDER BY at DESC, recorded_at DESC LIMIT 1
) AS t ON true
LEFT JOIN LATERAL (
    SELECT lost_seconds FROM incident_events WHERE incident_id = i.incident_id AND lost_seconds IS NOT NULL
    ORDER BY at DESC, recorded_at DESC LIMIT 1
) AS l ON true
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(rank ORDER BY rank), '{}') AS ranks,
           coalesce(array_agg(DISTINCT node ORDER BY node), '{}') AS nodes
    FROM incident_culprits WHERE incident_id = i.incident_id
) AS c
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(plan_id ORDER BY proposed_at, plan_id), '{}') AS plan_ids
    FROM plans WHERE incident_id = i.incident_id
) AS p
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(detail ORDER BY at, recorded_at), '{}') AS notes
    FROM incident_events WHERE incident_id = i.incident_id AND kind = 'note'
) AS n
"""

_JOB_HISTORY = """
SELECT job_id, at, 1 AS place, 'job ' || state AS what, job_id AS subject, detail FROM job_events
UNION ALL
SELECT job_id, registered_at, 2, 'rank started', 'rank ' || rank || ' incarnation ' || incarnation,
       'on ' || device || ' of ' || node || CASE WHEN can_reshape THEN '' ELSE ', cannot be reshaped' END
FROM ranks
UNION ALL
SELECT v.job_id, v.decided_at, 3, 'verdict ' || v.kind, v.verdict_id,
       'ranks ' || c.ranks || ', throughput ' || round(v.throughput::numeric, 2)
       || ', since iteration ' || v.first_iteration
FROM verdicts AS v CROSS JOIN LATERAL (
    SELECT coalesce(string_agg(rank::text, ', ' ORDER BY rank), 'unknown') AS ranks
    FROM verdict_culprits WHERE verdict_id = v.verdict_id
) AS c
UNION ALL
SELECT job_id, opened_at, 4, 'incident opened', incident_id, kind || ' from iteration ' || first_iteration
FROM incidents
UNION ALL
SELECT i.job_id, e.at, 7, 'incident ' || e.kind, e.incident_id,
       concat_ws(', ', nullif(e.detail, ''), round(e.lost_seconds::numeric, 2) || ' s lost')
FROM incident_events AS e JOIN incidents AS i USING (incident_id) WHERE e.kind IN ('loss', 'note', 'resolved')
UNION ALL
SELECT p.job_id, e.at, 5, 'plan ' || e.state, e.plan_id,
       CASE e.state
           WHEN 'proposed' THEN p.reason
           WHEN 'committed' THEN 'epoch ' || p.epoch || ', ' || p.mode
           WHEN 'applied' THEN 'from iteration ' || e.first_iteration
           WHEN 'measured' THEN round(e.measured_seconds::numeric, 3) || ' s per iteration, predicted '
                                || round(p.predicted_seconds::numeric, 3) || ' s'
           ELSE e.detail
       END
FROM plan_events AS e JOIN plans AS p USING (plan_id)
"""


def upgrade() -> None:
    """Apply."""
    op.execute("ALTER TABLE ranks ADD COLUMN can_reshape boolean NOT NULL DEFAULT true")
    op.execute("ALTER TABLE plans ADD COLUMN throughputs jsonb")
    op.execute("ALTER TABLE plan_events DROP CONSTRAINT ck_plan_events_state")
    op.execute(f"ALTER TABLE plan_events ADD CONSTRAINT ck_plan_events_state CHECK (state IN ({_STATES}))")
    # Replaced views keep their rights, and their columns: new ones come last.
    views = {"current_plans": _CURRENT_PLANS, "current_incidents": _CURRENT_INCIDENTS, "job_history": _JOB_HISTORY}
    for name, query in views.items():
        op.execute(f"CREATE OR REPLACE VIEW {name} WITH (security_invoker = true) AS {query}")


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
