import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import psycopg
import pytest

from history import migrate

pytestmark = pytest.mark.integration


def test_an_empty_database_has_no_revision(empty_database_url: str) -> None:
    assert migrate.current_revision(empty_database_url) is None


def test_the_migrations_add_up_to_the_tables_in_the_code(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)

    assert migrate.current_revision(empty_database_url) == migrate.newest_revision()
    assert migrate.drift(empty_database_url) == []


def test_a_column_that_the_code_does_not_know_is_drift(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("ALTER TABLE jobs ADD COLUMN colour text")

    (difference,) = migrate.drift(empty_database_url)

    assert difference[0] == "remove_column"
    assert difference[3].name == "colour"


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


def test_migrators_at_the_same_time_wait_for_one_another(empty_database_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        list(pool.map(migrate.upgrade, [empty_database_url] * 2))

    assert migrate.current_revision(empty_database_url) == migrate.newest_revision()
