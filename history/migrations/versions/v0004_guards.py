"""Append-only guards, roles, and row security by tenant."""

from alembic import op

revision = "0004"
down_revision = "0003"

_BY_JOB = (
    "job_events",
    "job_layouts",
    "ranks",
    "rank_moves",
    "rank_exits",
    "verdicts",
    "incidents",
    "plans",
    "rank_rollups",
)
_BY_PARENT = {
    "verdict_culprits": ("verdict_id", "verdicts"),
    "incident_culprits": ("incident_id", "incidents"),
    "incident_events": ("incident_id", "incidents"),
    "plan_actions": ("plan_id", "plans"),
    "plan_alternatives": ("plan_id", "plans"),
    "plan_events": ("plan_id", "plans"),
    "nodes": ("node", "ranks"),
    "devices": ("(node, device)", "ranks"),
}
_APPEND_ONLY = ("jobs", *(table for table in _BY_JOB if table != "rank_rollups"), *_BY_PARENT)
_READABLE = ("jobs", *_BY_JOB, *_BY_PARENT)
_REPLACED = ("detector_snapshots", "outbox", "job_state", "job_seats")
_SEQUENCES = ("job_events_job_event_id_seq", "rank_moves_rank_move_id_seq", "outbox_outbox_id_seq")
# Which tenants a reader may see is found once a query, not once a job.
_GRANTED = "ARRAY(SELECT tenant FROM tenant_grants)"
_MAY_READ = f"""
coalesce(nullif(current_setting('evenkeel.tenant', true), ''), tenant) = tenant
AND (tenant = ANY ({_GRANTED}) OR '*' = ANY ({_GRANTED}))
"""


def upgrade() -> None:
    """Apply."""
    _refuse_changes()
    _create_roles()
    _grant_rights()
    _secure_rows()


def _refuse_changes() -> None:
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '% on % refused: history is append-only, insert a row instead', TG_OP, TG_TABLE_NAME
                USING ERRCODE = 'restrict_violation';
        END $$
        """
    )
    for table in _APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    # Rollups are the one table that grows with time alone: old ones may be deleted, none may be changed.
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE ON rank_rollups FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def _create_roles() -> None:
    # Roles belong to the server, not to the database: another database's migration may have made them, or may be
    # making them at this moment.
    for role in ("evenkeel_reader", "evenkeel_service"):
        op.execute(
            f"""
            DO $$
            BEGIN
                IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
                    CREATE ROLE {role} NOLOGIN;
                END IF;
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege THEN
                    RAISE EXCEPTION 'role {role} is missing and % may not create it', current_user
                        USING HINT = 'let an administrator run: CREATE ROLE {role} NOLOGIN',
                              ERRCODE = 'insufficient_privilege';
            END $$
            """
        )


def _grant_rights() -> None:
    readable = ", ".join(_READABLE)
    op.execute(f"GRANT SELECT ON {readable}, tenant_grants TO evenkeel_reader")
    op.execute(f"GRANT SELECT, INSERT ON {readable}, job_secrets TO evenkeel_service")
    op.execute("GRANT DELETE ON rank_rollups TO evenkeel_service")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(_REPLACED)} TO evenkeel_service")
    op.execute("GRANT SELECT, INSERT, UPDATE ON leases, intake_offsets TO evenkeel_service")
    op.execute(f"GRANT USAGE ON SEQUENCE {', '.join(_SEQUENCES)} TO evenkeel_service")


def _secure_rows() -> None:
    op.execute("ALTER TABLE tenant_grants ENABLE ROW LEVEL SECURITY")
    op.execute(
        """
        CREATE POLICY own_grants ON tenant_grants FOR SELECT USING (EXISTS (
            SELECT FROM pg_roles WHERE rolname = role_name AND pg_has_role(current_user, oid, 'USAGE')))
        """
    )
    # Every reader sees the default tenant; other tenants are granted role by role.
    op.execute("INSERT INTO tenant_grants (role_name, tenant) VALUES ('evenkeel_reader', 'default')")
    conditions = {"jobs": _MAY_READ}
    conditions |= dict.fromkeys(_BY_JOB, "job_id IN (SELECT job_id FROM jobs)")
    conditions |= {
        table: f"{key} IN (SELECT {key.strip('()')} FROM {parent})"  # noqa: S608 - names from this file only
        for table, (key, parent) in _BY_PARENT.items()
    }
    for table, condition in conditions.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY of_tenant ON {table} FOR SELECT TO evenkeel_reader USING ({condition})")
        op.execute(f"CREATE POLICY service ON {table} TO evenkeel_service USING (true) WITH CHECK (true)")
