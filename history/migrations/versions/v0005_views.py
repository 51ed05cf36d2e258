"""Views and functions that answer the audit questions; they run with the reader's own rights.

What a query does not ask for is not computed: values of one row are subqueries of their own, and states are joined by
primary key. An incident's accounts only grow, so the largest is the newest, whatever clocks said. An incident on
several nodes is counted for each, its loss shared among them; what the program did wrong is counted for no node.
Times of several machines are compared here and there, whose clocks need not agree: what comes out is never less than
nothing.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

_CURRENT_JOBS = """
SELECT j.job_id, j.tenant, j.name, e.state, e.at AS state_since, l.epoch, l.layout, j.num_devices, j.registered_at
FROM jobs AS j
CROSS JOIN LATERAL (
    SELECT state, at FROM job_events WHERE job_id = j.job_id ORDER BY job_event_id DESC LIMIT 1
) AS e
CROSS JOIN LATERAL (
    SELECT epoch, layout FROM job_layouts WHERE job_id = j.job_id ORDER BY epoch DESC LIMIT 1
) AS l
"""

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

_INCIDENT_NODES = """
SELECT i.incident_id, i.job_id, i.kind, i.opened_at, i.lost_seconds / cardinality(i.nodes) AS lost_seconds, n.node
FROM current_incidents AS i CROSS JOIN LATERAL unnest(i.nodes) AS n (node)
WHERE i.kind <> 'program_error'
"""

_FAILURES_BY_NODE_WEEK = """
SELECT date_trunc('week', opened_at AT TIME ZONE 'UTC')::date AS week, node, kind, count(*) AS incidents,
       count(DISTINCT job_id) AS jobs, sum(lost_seconds) AS lost_seconds
FROM incident_nodes GROUP BY week, node, kind
"""

_LOST_TIME_BY_INCIDENT = """
SELECT incident_id, job_id, kind, ranks, opened_at, resolved_at,
       CASE WHEN resolved_at < opened_at THEN 0
            ELSE extract(epoch FROM resolved_at - opened_at) END::double precision AS open_seconds, lost_seconds
FROM current_incidents
"""

_LOST_TIME_BY_JOB = """
SELECT job_id, incidents, open_incidents, lost_seconds, run_seconds, lost_seconds / nullif(run_seconds, 0) AS lost_part
FROM (
    SELECT j.job_id, count(i.incident_id) AS incidents,
           count(i.incident_id) FILTER (WHERE i.state = 'open') AS open_incidents,
           coalesce(sum(i.lost_seconds), 0) AS lost_seconds,
           extract(epoch FROM greatest(CASE j.state WHEN 'finished' THEN j.state_since ELSE now() END
                   - j.registered_at, interval '0'))::double precision AS run_seconds
    FROM current_jobs AS j LEFT JOIN current_incidents AS i USING (job_id)
    GROUP BY j.job_id, j.state, j.state_since, j.registered_at
) AS per_job
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

_TIME_BETWEEN_FAILURES = """
SELECT node, incident_id, job_id, kind, opened_at,
       extract(epoch FROM opened_at - lag(opened_at) OVER (PARTITION BY node ORDER BY opened_at, incident_id)
              )::double precision AS seconds_since_previous
FROM incident_nodes
"""

_MEAN_TIME_BETWEEN_FAILURES = """
SELECT node, count(*) AS incidents, min(opened_at) AS first_at, max(opened_at) AS last_at,
       avg(seconds_since_previous) AS mean_seconds_between
FROM time_between_failures GROUP BY node
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

_JOB_TIMELINE = """
CREATE FUNCTION job_timeline(job text, since timestamptz, until timestamptz)
RETURNS TABLE (at timestamptz, what text, subject text, detail text) LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT h.at, h.what, h.subject, h.detail FROM job_history AS h
    WHERE h.job_id = job AND h.at >= since AND h.at < until ORDER BY h.at, h.place, h.subject;
END
"""

_VIEWS = {
    "current_jobs": _CURRENT_JOBS,
    "current_ranks": _CURRENT_RANKS,
    "rank_incarnations": _RANK_INCARNATIONS,
    "current_incidents": _CURRENT_INCIDENTS,
    "current_plans": _CURRENT_PLANS,
    "incident_nodes": _INCIDENT_NODES,
    "failures_by_node_week": _FAILURES_BY_NODE_WEEK,
    "lost_time_by_incident": _LOST_TIME_BY_INCIDENT,
    "lost_time_by_job": _LOST_TIME_BY_JOB,
    "plan_accuracy": _PLAN_ACCURACY,
    "time_between_failures": _TIME_BETWEEN_FAILURES,
    "mean_time_between_failures": _MEAN_TIME_BETWEEN_FAILURES,
    "job_history": _JOB_HISTORY,
}


def upgrade() -> None:
    """Apply."""
    for name, query in _VIEWS.items():
        # Without security_invoker a view reads with its owner's rights, past the row security of its tables.
        op.execute(f"CREATE VIEW {name} WITH (security_invoker = true) AS {query}")
        op.execute(f"GRANT SELECT ON {name} TO evenkeel_reader, evenkeel_service")
    op.execute(_JOB_TIMELINE)
