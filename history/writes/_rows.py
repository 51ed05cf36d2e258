"""Records become rows: columns and fields have the same names. What a row refers to and is not there is named.

Asking first whether it is there would cost every write a round trip.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from typing import Any

import psycopg
from sqlalchemy import literal
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.errors import HistoryError, UnknownIncidentError, UnknownJobError, UnknownPlanError
from evenkeel.history.tables.base import Base

_KINDS: dict[str, type[UnknownJobError] | type[UnknownIncidentError] | type[UnknownPlanError]] = {
    "job_id": UnknownJobError,
    "incident_id": UnknownIncidentError,
    "plan_id": UnknownPlanError,
}


async def add_row(connection: AsyncConnection, table: type[Base], record: object, **said: Any) -> bool:
    """Add a row, unless one of its key is there.

    Args:
        connection: In a transaction.
        table: Where to.
        record: Each column is its field of the same name; one that it lacks is left to the database.
        said: Columns that are something else than its fields.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError, UnknownIncidentError, UnknownPlanError: What it refers to is not there.
    """
    names = [column.name for column in table.__table__.columns]
    values = {name: getattr(record, name) for name in names if name not in said and hasattr(record, name)} | said
    words = {name: value.value for name, value in values.items() if isinstance(value, Enum)}
    statement = insert(table).values(values | words).on_conflict_do_nothing().returning(literal(1))
    with named_errors(**{name: values.get(name) for name in _KINDS}):
        return (await connection.execute(statement)).first() is not None


async def add_parts(connection: AsyncConnection, table: type[Base], parts: Sequence[Any], **key: str) -> None:
    """Add the parts of a record that is new, each a row; numbered from 1 where the table numbers them."""
    is_numbered = "number" in table.__table__.columns
    rows = [
        {**key, **asdict(part), **({"number": number} if is_numbered else {})}
        for number, part in enumerate(parts, start=1)
    ]
    if rows:
        await connection.execute(insert(table).on_conflict_do_nothing(), rows)


@contextmanager
def named_errors(**references: str | None) -> Iterator[None]:
    """Turn a violated foreign key over one of ``references`` into the error that names it.

    Args:
        references: By column (``job_id``, ``incident_id``, ``plan_id``), what the statements inside refer to.
    """
    try:
        yield
    except IntegrityError as error:
        raise _named(error, references) or error from error


def _named(error: IntegrityError, references: dict[str, str | None]) -> HistoryError | None:
    cause = error.orig
    if not isinstance(cause, psycopg.errors.ForeignKeyViolation):
        return None
    constraint = cause.diag.constraint_name or ""
    for column, reference in references.items():
        if constraint.endswith(f"_{column}") and reference is not None:
            return _KINDS[column](reference)
    return None
