"""Databases of tests on a server: make one, copy one, drop one."""

import secrets
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


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
    return _with_database(server_url, name)


def drop_database(server_url: str, name: str) -> None:
    """Drops a database if it exists, with whoever is connected to it."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement)


def unique_database_name(prefix: str) -> str:
    """A name that no other test or session uses."""
    return f"{prefix}_{secrets.token_hex(6)}"


def _with_database(database_url: str, name: str) -> str:
    """The same address with another database's name."""
    return urlunsplit(urlsplit(database_url)._replace(path=f"/{name}"))
