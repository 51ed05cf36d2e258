"""A database and its schema."""

import importlib

import psycopg

from evenkeel.history.errors import MigrationError
from evenkeel.stack.errors import ServerAwayError, StackError


def upgrade_database(database_url: str) -> None:
    """Brings the schema to the newest migration; does nothing when it is there. Blocks.

    Raises:
        ServerAwayError: The server does not answer or refuses.
        StackError: The schema cannot be changed: the user lacks a right, or it is a newer version's.
    """
    # By name and late: Alembic and SQLAlchemy are only loaded by who needs them.
    migrate = importlib.import_module("evenkeel.history.migrate")
    try:
        with psycopg.connect(database_url, connect_timeout=20):
            pass
    except psycopg.OperationalError as error:
        problem = " ".join(str(error).split())
        raise ServerAwayError(f"PostgreSQL does not let us in: {problem}; check EVENKEEL_DATABASE_URL") from error
    try:
        migrate.upgrade(database_url)
    except MigrationError as error:
        raise StackError(str(error)) from error
