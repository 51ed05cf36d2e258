"""Brings a database to the newest schema, and says whether it is there. Blocking: call it from a command."""

import threading
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import ProgrammingError

from evenkeel.history.errors import MigrationError
from evenkeel.history.tables import Base

_CONNECT_TIMEOUT_SECONDS = 10
# Alembic keeps the migration in progress in module globals.
_one_at_a_time = threading.Lock()


def _engine(database_url: str) -> Engine:
    # A migration may wait for a lock, but not for ever: a service that holds one is a mistake to hear about.
    return create_engine(
        database_url,
        connect_args={"connect_timeout": _CONNECT_TIMEOUT_SECONDS, "options": "-c lock_timeout=30000"},
    )


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def upgrade(database_url: str, revision: str = "head") -> None:
    """Apply all migrations that are missing, in one transaction; does nothing when there are none.

    Several callers at once are safe: they wait for one another.

    Args:
        database_url: ``postgresql://user:password@host:port/database``; the user must own the database's schema and,
            the first time on a server, may create roles.
        revision: Stop there instead of at the newest.

    Raises:
        sqlalchemy.exc.OperationalError: The database cannot be reached.
        MigrationError: The user lacks a right, or the schema is that of a newer version.
    """
    engine = _engine(database_url)
    try:
        with _one_at_a_time, engine.begin() as connection:
            command.upgrade(_config(connection), revision)
    except ProgrammingError as error:
        problem = " ".join(str(error.orig).split())
        raise MigrationError(f"the schema cannot be changed: {problem}; use a user who owns the database") from error
    except CommandError as error:
        raise MigrationError(f"the schema is not one of this version's: {error}; update Evenkeel first") from error
    finally:
        engine.dispose()


def newest_revision() -> str:
    """The revision that this version of the code expects."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def current_revision(database_url: str) -> str | None:
    """The revision that the database is at, or None for a database without the history.

    Raises:
        sqlalchemy.exc.OperationalError: The database cannot be reached.
    """
    engine = _engine(database_url)
    try:
        with engine.connect() as connection:
            if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
                return None
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def drift(database_url: str) -> list[Any]:
    """Differences between the tables in the code and those in a migrated database; empty when there are none."""
    engine = _engine(database_url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_server_default": True})
            return list(compare_metadata(context, Base.metadata))
    finally:
        engine.dispose()
