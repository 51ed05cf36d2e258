import grpc
import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from evenkeel.history.errors import (
    JobConflictError,
    JobIdUsedError,
    UnknownIncidentError,
    UnknownJobError,
    UnknownPlanError,
)
from evenkeel.history.reads import PageError
from evenkeel.layouts.layout import LayoutError
from evenkeel.services.scheduler.adapters.api.errors import InvalidRequestError, RefusedError, status_of
from evenkeel.services.scheduler.adapters.ranks.tls import SecurityMismatchError


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UnknownJobError("j"), grpc.StatusCode.NOT_FOUND, "no job 'j'"),
        (UnknownPlanError("p"), grpc.StatusCode.NOT_FOUND, "no plan 'p'"),
        (UnknownIncidentError("i"), grpc.StatusCode.NOT_FOUND, "no incident 'i'"),
        (JobConflictError("j", "layout"), grpc.StatusCode.ALREADY_EXISTS, "another layout"),
        (JobIdUsedError("j"), grpc.StatusCode.ALREADY_EXISTS, "has finished"),
        (LayoutError("ranks [1] hold more than one position"), grpc.StatusCode.INVALID_ARGUMENT, "ranks [1]"),
        (InvalidRequestError("rank -1"), grpc.StatusCode.INVALID_ARGUMENT, "rank -1"),
        (PageError("page_size -1"), grpc.StatusCode.INVALID_ARGUMENT, "page_size -1"),
        (RefusedError(grpc.StatusCode.UNAUTHENTICATED, "send metadata"), grpc.StatusCode.UNAUTHENTICATED, "send"),
        (SecurityMismatchError("set it"), grpc.StatusCode.FAILED_PRECONDITION, "set it"),
        (OperationalError("SELECT secret", {}, Exception("gone")), grpc.StatusCode.UNAVAILABLE, "try again"),
        (ConnectionRefusedError("10.0.0.9:5432"), grpc.StatusCode.UNAVAILABLE, "try again"),
        (TimeoutError(), grpc.StatusCode.UNAVAILABLE, "try again"),
    ],
)
def test_each_error_has_its_status_and_a_message_for_the_caller(
    error: Exception, code: grpc.StatusCode, message: str
) -> None:
    found, text = status_of(error)

    assert found is code
    assert message in text
    assert "secret" not in text
    assert "5432" not in text


@pytest.mark.parametrize(
    "error", [ValueError("our own bug"), KeyError("x"), IntegrityError("INSERT secret", {}, Exception("duplicate"))]
)
def test_our_own_faults_say_nothing_of_our_inside(error: Exception) -> None:
    code, text = status_of(error)

    assert code is grpc.StatusCode.INTERNAL
    assert text == "internal error; the scheduler's log has it"
