"""Records become rows: columns and fields have the same names. What a row refers to and is not there is named.

Asking first whether it is there would cost every write a round trip.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy import TextClause, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.errors import HistoryError, UnknownIncidentError, UnknownJobError, UnknownPlanError

_KINDS: dict[str, type[UnknownJobError] | type[UnknownIncidentError] | type[UnknownPlanError]] = {
    "job_id": UnknownJobError,
    "incident_id": UnknownIncidentError,
    "plan_id": UnknownPlanError,
}


def values_of(record: Any, **said: Any) -> dict[str, Any]:
    """Columns: each field of a record that is no tuple, whose items are rows of their own; ``said`` adds to them."""
    names = [each.name for each in fields(record)]
    return {name: value for name in names if not isinstance(value := getattr(record, name), tuple)} | said


async def add_row(connection: AsyncConnection, table: str, values: Mapping[str, Any]) -> bool:
    """Add a row, unless one of its key is there.

    Args:
        connection: In a transaction.
        table: Where to.
        values: By column; those that are left out are left to the database.

    Returns:
        True when it is new.

    Raises:
        UnknownJobError, UnknownIncidentError, UnknownPlanError: What it refers to is not there.
    """
    with named_errors(**{name: values.get(name) for name in _KINDS}):
        return (await connection.execute(_insert(table, tuple(values)), _written(values))).first() is not None


async def add_parts(
    connection: AsyncConnection, table: str, parts: Sequence[Any], *, is_numbered: bool = False, **key: str
) -> None:
    """Add the parts of a record that is new, each a row, numbered from 1 where the table numbers them."""
    rows = [
        values_of(part, **key, **({"number": number} if is_numbered else {}))
        for number, part in enumerate(parts, start=1)
    ]
    if rows:
        await connection.execute(_insert(table, tuple(rows[0])), rows)


@cache
def _insert(table: str, names: tuple[str, ...]) -> TextClause:
    columns, values = ", ".join(names), ", ".join(f":{name}" for name in names)
    return text(f"INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING RETURNING 1")  # noqa: S608


def _written(values: Mapping[str, Any]) -> dict[str, Any]:
    """As the driver takes them: words for members of a closed set, documents for what has a structure."""
    written = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    return {name: Jsonb(value) if isinstance(value, Mapping | list) else value for name, value in written.items()}


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
