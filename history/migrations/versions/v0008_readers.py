"""A reader's questions over a year, as fast as the owner's.

Which tenants a reader may see is found once a query, not once a job: the function that was asked held a query of its
own and could not be planned as a part of the caller's. Processes find their successor and their end for all in one
pass, and by the keys of a job where one job is asked for. Verdicts of all jobs are paged through by an index.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_GRANTED = "ARRAY(SELECT tenant FROM tenant_grants)"
_MAY_READ = f"""
coalesce(nullif(current_setting('evenkeel.tenant', true), ''), tenant) = tenant
AND (tenant = ANY ({_GRANTED}) OR '*' = ANY ({_GRANTED}))
"""

_RANK_INCARNATIONS = """
SELECT r.job_id, r.rank, r.incarnation, r.node, r.device, r.registered_at AS started_at,
       coalesce(v.decided_at, r.replaced_at) AS ended_at, v.kind AS ended_by, v.verdict_id, r.replaced_by,
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
    WHERE kind IN ('fail_stop', 'hang')
    ORDER BY job_id, c.rank, c.incarnation, decided_at, verdict_id
) AS v ON v.job_id = r.job_id AND v.rank = r.rank AND v.incarnation = r.incarnation
"""


def upgrade() -> None:
    """Apply."""
    op.execute(f"ALTER POLICY of_tenant ON jobs USING ({_MAY_READ})")
    op.execute("DROP FUNCTION may_read_tenant(text)")
    # Replaced views keep their rights.
    op.execute(f"CREATE OR REPLACE VIEW rank_incarnations WITH (security_invoker = true) AS {_RANK_INCARNATIONS}")
    op.drop_index("ix_verdicts_job_id_decided_at", "verdicts")
    op.create_index("ix_verdicts_job_id_decided_at_verdict_id", "verdicts", ["job_id", "decided_at", "verdict_id"])
    op.create_index("ix_verdicts_decided_at_verdict_id", "verdicts", ["decided_at", "verdict_id"])


def downgrade() -> None:
    """History is not taken back: restore a backup instead."""
    raise RuntimeError("the history cannot be downgraded; restore a backup")
