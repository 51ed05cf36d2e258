"""PostgreSQL by SQLAlchemy and psycopg 3: one engine per process, explicit time limits, patient at the start."""

from functools import partial

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from evenkeel.services.common.postgres.bounded_connection import connect_bounded

DATABASE_AWAY: tuple[type[BaseException], ...] = (
    OperationalError,
    InterfaceError,
    # A server that only reads for a while, as a standby does until it is promoted.
    InternalError,
    PoolTimeoutError,
    OSError,
    TimeoutError,
)
"""Errors that mean that the database is away or overloaded: try again. Others are our fault."""

UNREADABLE: tuple[type[BaseException], ...] = (*DATABASE_AWAY, DBAPIError)
"""The same for whoever only reads: tables that are not there yet are no other matter."""


class DatabaseAwayError(ConnectionError):
    """The database did not answer in time, or there was no way to it: what SQLAlchemy has no error of its own for."""


# The server's own limit comes first wherever there is a server: its error says more.
_SERVER_GRACE_SECONDS = 2.0


def create_engine(
    url: str,
    *,
    application_name: str,
    pool_size: int = 5,
    connect_timeout_seconds: int = 5,
    statement_timeout_seconds: float = 10.0,
    lock_timeout_seconds: float = 5.0,
) -> AsyncEngine:
    """An engine whose every wait has an end, also when the server is frozen.

    It connects when first used; dispose of it in the end.

    Args:
        url: ``postgresql://user:password@host:port/database``.
        application_name: Shown in ``pg_stat_activity``.
        pool_size: Most connections held open.
        connect_timeout_seconds: For one attempt to connect; also for a connection from the pool.
        statement_timeout_seconds: Enforced by the server on every statement.
        lock_timeout_seconds: Enforced by the server on every lock.
    """
    options = (
        f"-c statement_timeout={round(statement_timeout_seconds * 1000)} "
        f"-c lock_timeout={round(lock_timeout_seconds * 1000)} -c timezone=UTC"
    )
    return create_async_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_size=pool_size,
        max_overflow=0,
        pool_pre_ping=True,
        pool_timeout=connect_timeout_seconds,
        pool_recycle=1800,
        connect_args={
            "application_name": application_name,
            "connect_timeout": connect_timeout_seconds,
            "options": options,
            "async_creator_fn": partial(
                connect_bounded, wait_limit_seconds=statement_timeout_seconds + _SERVER_GRACE_SECONDS
            ),
        },
    )


def is_database_away(error: BaseException) -> bool:
    """True when ``error`` says that the database is not there (any more), False when the statement is at fault."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, DATABASE_AWAY)


def is_told_by_database(error: BaseException) -> bool:
    """As :func:`is_database_away`, of work that does more than ask the database: other time limits are not meant."""
    by_system = isinstance(error, OSError | TimeoutError) and not isinstance(error, DatabaseAwayError)
    return is_database_away(error) and not by_system
