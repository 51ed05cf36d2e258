import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

pytestmark = pytest.mark.integration

Connection = psycopg.Connection[tuple[object, ...]]

PRIVATE = ("job_secrets", "job_state", "job_seats", "outbox", "detector_snapshots", "leases", "intake_offsets")
REPLACED = (*PRIVATE, "rank_rollups", "tenant_grants", "alembic_version")


def user_of(database_url: str, name: str, password: str) -> str:
    parts = urlsplit(database_url)
    return urlunsplit(parts._replace(netloc=f"{name}:{password}@{parts.hostname}:{parts.port}"))


class Users:
    """Login roles made for one test, dropped after it."""

    def __init__(self, owner: Connection, database_url: str) -> None:
        self._owner = owner
        self._database_url = database_url
        self._names: list[str] = []
        self._connections: list[Connection] = []

    def connect(self, role: str, *, tenants: tuple[str, ...] = ()) -> Connection:
        name, password = f"test_{secrets.token_hex(6)}", secrets.token_hex(8)
        self._owner.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                sql.Identifier(name), sql.Literal(password), sql.Identifier(role)
            )
        )
        self._names.append(name)
        for tenant in tenants:
            self._owner.execute("INSERT INTO tenant_grants VALUES (%s, %s)", (name, tenant))
        connection = psycopg.connect(user_of(self._database_url, name, password), autocommit=True)
        self._connections.append(connection)
        return connection

    def drop(self) -> None:
        for connection in self._connections:
            connection.close()
        for name in self._names:
            self._owner.execute("DELETE FROM tenant_grants WHERE role_name = %s", (name,))
            # A backend still drops its temporary tables after its client has gone: wait until it has ended.
            self._owner.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = %s", (name,)
            )
            self._owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def users(owner: Connection, seeded_url: str) -> Iterator[Users]:
    users = Users(owner, seeded_url)
    yield users
    users.drop()


def jobs_in(connection: Connection, relation: str) -> set[object]:
    query = sql.SQL("SELECT DISTINCT job_id FROM {}").format(sql.Identifier(relation))
    return {row[0] for row in connection.execute(query)}


def test_nobody_changes_or_deletes_history_not_even_its_owner(owner: Connection) -> None:
    columns = owner.execute(
        "SELECT table_name, min(column_name) FROM information_schema.columns JOIN information_schema.tables "
        "USING (table_schema, table_name) WHERE table_schema = 'public' AND table_type = 'BASE TABLE' "
        "AND table_name <> ALL (%s) GROUP BY table_name",
        (list(REPLACED),),
    ).fetchall()
    assert "plan_events" in {table for table, _ in columns}
    for name, column in [(sql.Identifier(str(table)), sql.Identifier(str(column))) for table, column in columns]:
        for attempt in (
            sql.SQL("UPDATE {0} SET {1} = {1}").format(name, column),
            sql.SQL("DELETE FROM {}").format(name),
            sql.SQL("TRUNCATE {} CASCADE").format(name),
        ):
            with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
                owner.execute(attempt)


def test_rollups_may_be_pruned_and_never_changed(owner: Connection) -> None:
    with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
        owner.execute("UPDATE rank_rollups SET tokens = 0")

    with owner.transaction(force_rollback=True):
        assert owner.execute("DELETE FROM rank_rollups").rowcount == 8


def test_the_service_role_adds_and_replaces_and_does_nothing_else(users: Users) -> None:
    service = users.connect("evenkeel_service")

    with service.transaction(force_rollback=True):
        assert service.execute("INSERT INTO nodes VALUES ('node-z', now())").rowcount == 1
    assert jobs_in(service, "jobs") == {"llama", "bert"}
    for attempt in (
        "UPDATE jobs SET name = 'x'",
        "DELETE FROM plan_events",
        "TRUNCATE verdicts",
        "DROP TABLE outbox",
        "ALTER TABLE jobs DISABLE TRIGGER append_only",
        "INSERT INTO tenant_grants VALUES ('evenkeel_reader', '*')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            service.execute(attempt.encode())


def test_a_reader_sees_the_default_tenant_only_in_tables_and_views(users: Users) -> None:
    reader = users.connect("evenkeel_reader")

    for relation in ("jobs", "ranks", "verdicts", "incidents", "current_jobs", "current_incidents", "job_history"):
        assert jobs_in(reader, relation) == {"llama"}, relation
    assert reader.execute("SELECT DISTINCT node FROM devices ORDER BY node").fetchall() == [("node-a",), ("node-b",)]
    assert (
        reader.execute("SELECT DISTINCT incident_id FROM incident_events WHERE incident_id = 'bert-i1'").rowcount == 0
    )
    timeline = "SELECT * FROM job_timeline('bert', '-infinity', 'infinity')"
    assert reader.execute(timeline).fetchall() == []


def test_a_grant_opens_another_tenant_to_one_role_only(users: Users) -> None:
    granted = users.connect("evenkeel_reader", tenants=("research",))
    other = users.connect("evenkeel_reader")

    assert jobs_in(granted, "current_jobs") == {"llama", "bert"}
    assert jobs_in(other, "current_jobs") == {"llama"}
    grants = granted.execute("SELECT tenant FROM tenant_grants ORDER BY tenant").fetchall()
    assert grants == [("default",), ("research",)]


def test_a_star_opens_every_tenant(users: Users) -> None:
    assert jobs_in(users.connect("evenkeel_reader", tenants=("*",)), "jobs") == {"llama", "bert"}


def test_the_session_setting_narrows_and_never_widens(users: Users) -> None:
    reader = users.connect("evenkeel_reader", tenants=("research",))
    reader.execute("SET evenkeel.tenant = 'research'")
    assert jobs_in(reader, "jobs") == {"bert"}

    reader = users.connect("evenkeel_reader")
    reader.execute("SET evenkeel.tenant = 'research'")
    assert jobs_in(reader, "jobs") == set()


def test_what_a_reader_may_see_is_asked_once_a_query_not_once_a_row(users: Users) -> None:
    def scans_of_grants(node: dict[str, Any]) -> list[int]:
        own = [node["Actual Loops"]] if node.get("Relation Name") == "tenant_grants" else []
        return own + [loops for child in node.get("Plans", ()) for loops in scans_of_grants(child)]

    reader = users.connect("evenkeel_reader", tenants=("*",))
    for query in ("SELECT * FROM jobs", "SELECT * FROM verdict_culprits", "SELECT * FROM current_incidents"):
        ((explained,),) = reader.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}").fetchall()
        loops = scans_of_grants(explained[0]["Plan"])
        assert 1 in loops, query
        assert max(loops) == 1, query


def test_a_temporary_table_does_not_stand_in_for_the_grants(users: Users) -> None:
    reader = users.connect("evenkeel_reader")
    reader.execute("CREATE TEMPORARY TABLE tenant_grants (role_name text, tenant text)")
    reader.execute("INSERT INTO pg_temp.tenant_grants VALUES (current_user, '*')")

    assert jobs_in(reader, "jobs") == {"llama"}


@pytest.mark.parametrize("table", PRIVATE)
def test_a_reader_sees_no_secrets_and_no_internals(users: Users, table: str) -> None:
    reader = users.connect("evenkeel_reader", tenants=("*",))

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))


def test_a_reader_writes_nothing(users: Users) -> None:
    reader = users.connect("evenkeel_reader", tenants=("*",))

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute("INSERT INTO nodes VALUES ('node-z', now())")
