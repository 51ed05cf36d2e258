"""Which errors of the database mean that it is away, and which that the statement is at fault."""

import psycopg.errors
import pytest
from sqlalchemy.exc import DBAPIError

from evenkeel.services.common.postgres.database import DATABASE_AWAY, is_database_away


def raised(cause: psycopg.Error) -> BaseException:
    """The error that SQLAlchemy makes of a driver's error."""
    return DBAPIError.instance("INSERT", {}, cause, psycopg.Error, dialect=None)


@pytest.mark.parametrize(
    "cause",
    [
        psycopg.errors.AdminShutdown(),
        psycopg.errors.CannotConnectNow(),
        psycopg.errors.TooManyConnections(),
        psycopg.errors.DiskFull(),
        psycopg.errors.LockNotAvailable(),
        psycopg.errors.QueryCanceled(),
        psycopg.errors.DeadlockDetected(),
        psycopg.errors.ReadOnlySqlTransaction(),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_what_passes_by_itself_is_waited_for(cause: psycopg.Error) -> None:
    assert isinstance(raised(cause), DATABASE_AWAY)
    assert is_database_away(raised(cause))


@pytest.mark.parametrize(
    "cause",
    [psycopg.errors.UniqueViolation(), psycopg.errors.UndefinedColumn(), psycopg.errors.InvalidTextRepresentation()],
    ids=lambda cause: type(cause).__name__,
)
def test_what_a_statement_got_wrong_is_not(cause: psycopg.Error) -> None:
    assert not is_database_away(raised(cause))
