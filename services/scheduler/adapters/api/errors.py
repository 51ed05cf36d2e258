"""Which error becomes which gRPC status: one table, one function."""

import grpc

from evenkeel.history.errors import (
    DeposedError,
    HistoryError,
    JobConflictError,
    UnknownIncidentError,
    UnknownJobError,
    UnknownPlanError,
)
from evenkeel.history.reads import PageError
from evenkeel.layouts.layout import LayoutError
from evenkeel.services.common.postgres.database import is_database_away
from evenkeel.services.scheduler.adapters.ranks.tls import SecurityMismatchError
from evenkeel.services.scheduler.serving.faults import JobAwayError


class RefusedError(Exception):
    """The fleet API refuses a call.

    Attributes:
        code: The status of the call.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidRequestError(RefusedError):
    """A field of a request cannot be; the message names it and says what would do."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, message)


_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (LayoutError, grpc.StatusCode.INVALID_ARGUMENT),
    (JobAwayError, grpc.StatusCode.UNAVAILABLE),
    (DeposedError, grpc.StatusCode.UNAVAILABLE),
    (PageError, grpc.StatusCode.INVALID_ARGUMENT),
    (UnknownJobError, grpc.StatusCode.NOT_FOUND),
    (UnknownPlanError, grpc.StatusCode.NOT_FOUND),
    (UnknownIncidentError, grpc.StatusCode.NOT_FOUND),
    (JobConflictError, grpc.StatusCode.ALREADY_EXISTS),
    (SecurityMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (HistoryError, grpc.StatusCode.FAILED_PRECONDITION),
)


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status and the message for the caller. What is our own fault says nothing of our inside."""
    if isinstance(error, RefusedError):
        return error.code, str(error)
    if is_database_away(error):
        return grpc.StatusCode.UNAVAILABLE, "the database is away; try again"
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, f"layout: {error}" if kind is LayoutError else str(error)
    return grpc.StatusCode.INTERNAL, "internal error; the scheduler's log has it"
