import multiprocessing
import secrets
from concurrent.futures import ProcessPoolExecutor
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from alembic.script import ScriptDirectory
from psycopg import sql

from evenkeel.history import migrate, migrations
from evenkeel.history.errors import MigrationError

pytestmark = pytest.mark.integration

NEWEST = ScriptDirectory(migrations.__path__[0]).get_current_head()


def revision_of(database_url: str) -> object:
    with psycopg.connect(database_url) as connection:
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone() or (None,)
    return revision


def test_the_migrations_lead_to_the_newest_revision_and_once_more_nothing_happens(empty_database_url: str) -> None:
    for _ in range(2):
        migrate.upgrade(empty_database_url)

        assert revision_of(empty_database_url) == NEWEST


def test_each_migration_can_be_applied_to_a_database_with_data(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url, "0001")
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(
            "INSERT INTO jobs (job_id, tenant, name, model, num_devices, registered_at) "
            "VALUES ('old', 'default', 'Old', '{}', 8, now())"
        )

    migrate.upgrade(empty_database_url)

    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT job_id FROM jobs").fetchall() == [("old",)]


def test_a_schema_of_a_newer_version_is_refused(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")

    with pytest.raises(MigrationError, match=r"9999.*; update Evenkeel first"):
        migrate.upgrade(empty_database_url)


def test_tables_of_before_the_first_migration_are_refused_though_their_number_is_the_newest(
    empty_database_url: str,
) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)")
        connection.execute("INSERT INTO alembic_version VALUES (%s)", (NEWEST,))

    with pytest.raises(MigrationError, match=r"lacks the table rank_exits; .* use another database"):
        migrate.upgrade(empty_database_url)


def test_a_user_who_may_not_make_tables_is_told_so(empty_database_url: str) -> None:
    role = f"guest_{secrets.token_hex(4)}"
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'guest'").format(sql.Identifier(role)))
    address = urlsplit(empty_database_url)
    guest_url = urlunsplit(address._replace(netloc=f"{role}:guest@{address.hostname}:{address.port}"))

    with pytest.raises(MigrationError, match=r"permission denied.*; use a user who owns the database"):
        migrate.upgrade(guest_url)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_migrators_at_the_same_time_wait_for_one_another(empty_database_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        list(pool.map(migrate.upgrade, [empty_database_url] * 2))

    assert revision_of(empty_database_url) == NEWEST
