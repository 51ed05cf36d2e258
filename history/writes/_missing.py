"""Names what a row refers to and is not there: asking first would cost every write a round trip."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.exc import IntegrityError

from evenkeel.history.errors import HistoryError, UnknownIncidentError, UnknownJobError, UnknownPlanError

_KINDS: dict[str, type[UnknownJobError] | type[UnknownIncidentError] | type[UnknownPlanError]] = {
    "job_id": UnknownJobError,
    "incident_id": UnknownIncidentError,
    "plan_id": UnknownPlanError,
}


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
