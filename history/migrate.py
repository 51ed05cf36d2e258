"""Brings a database to the newest schema. Blocking: call it from a command."""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import ProgrammingError

from evenkeel.history.errors import MigrationError

_CONNECT_TIMEOUT_SECONDS = 10
# Alembic keeps the migration in progress in module globals.
_one_at_a_time = threading.Lock()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
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
        MigrationError: The user lacks a right, or the schema is that of a newer version, or of one that is too old.
    """
    # A migration may wait for a lock, but not for ever: a service that holds one is a mistake to hear about.
    engine = create_engine(
        database_url,
        connect_args={"connect_timeout": _CONNECT_TIMEOUT_SECONDS, "options": "-c lock_timeout=30000"},
    )
    try:
        with _one_at_a_time, engine.begin() as connection:
            command.upgrade(_config(connection), revision)
            # Migrations of before these had the same numbers, and no such table until their ninth.
            if connection.scalar(text("SELECT to_regclass('rank_exits') IS NULL")):
                raise CommandError("it lacks the table rank_exits")
    except ProgrammingError as error:
        problem = " ".join(str(error.orig).split())
        raise MigrationError(f"the schema cannot be changed: {problem}; use a user who owns the database") from error
    except CommandError as error:
        raise MigrationError(
            f"the schema is another version's: {error}; update Evenkeel first, or use another database"
        ) from error
    finally:
        engine.dispose()
