"""Databases on a server: migrate one, make one, copy one, drop one."""

import importlib
import secrets
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

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
        raise ServerAwayError(f"PostgreSQL does not answer: {problem}; check EVENKEEL_DATABASE_URL") from error
    try:
        migrate.upgrade(database_url)
    except MigrationError as error:
        raise StackError(str(error)) from error


def create_database(server_url: str, name: str, *, template: str | None = None) -> str:
    """Makes a database and returns its address.

    Args:
        server_url: Any database of the server, as a user who may create databases.
        name: Name of the new one.
        template: Copies this database, which nobody may be connected to; None = an empty one.
    """
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement)
    return with_database(server_url, name)


def drop_database(server_url: str, name: str) -> None:
    """Drops a database if it exists, with whoever is connected to it."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement)


def unique_database_name(prefix: str) -> str:
    """A name that no other test or session uses."""
    return f"{prefix}_{secrets.token_hex(6)}"


def with_database(database_url: str, name: str) -> str:
    """The same address with another database's name."""
    return urlunsplit(urlsplit(database_url)._replace(path=f"/{name}"))
