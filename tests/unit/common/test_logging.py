import logging

import pytest
from aiokafka.errors import UnknownMemberIdError

from evenkeel.services.common.logging import RepeatFilter


def record(name: str, message: str, error: Exception | None = None, *, level: int = logging.ERROR) -> logging.LogRecord:
    raised = (type(error), error, None) if error is not None else None
    return logging.LogRecord(name, level, __file__, 1, message, (), raised)


def test_a_kafka_client_gets_one_line_for_each_of_its_modules_however_it_words_it() -> None:
    repeats = RepeatFilter()
    assert repeats.filter(record("aiokafka.conn", "cannot connect"))
    assert not repeats.filter(record("aiokafka.conn", "connection lost"))
    assert repeats.filter(record("aiokafka.consumer.fetcher", "cannot fetch"))


def test_other_libraries_get_one_line_for_each_message() -> None:
    repeats = RepeatFilter()
    assert repeats.filter(record("sqlalchemy.pool", "one"))
    assert repeats.filter(record("sqlalchemy.pool", "two"))
    assert not repeats.filter(record("sqlalchemy.pool", "two"))


def test_a_database_that_does_not_hear_a_cancellation_gets_no_line_beside_the_one_that_it_is_away() -> None:
    repeats = RepeatFilter()
    assert not repeats.filter(record("psycopg", "query cancellation failed", level=logging.WARNING))
    assert repeats.filter(record("sqlalchemy.pool", "a warning", level=logging.WARNING))
    assert repeats.filter(record("psycopg", "something else"))


@pytest.mark.parametrize(("error", "has_trace"), [(UnknownMemberIdError("x"), False), (KeyError("x"), True)])
def test_a_task_that_the_kafka_client_gave_up_leaves_no_trace_but_any_other_does(
    error: Exception, has_trace: bool
) -> None:
    lost = record("asyncio", "Task exception was never retrieved", error)
    assert RepeatFilter().filter(lost)
    assert (lost.exc_info is not None) is has_trace
    assert type(error).__name__ in lost.getMessage() or has_trace
