"""How a command fails: one line that says what is wrong, one that says what to do next, and a stable exit status."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from evenkeel.contracts.kafka_security import SETTINGS


class ExitStatus(IntEnum):
    """Exit statuses of ``evenkeel``; they do not change between versions.

    Attributes:
        OK: Done, whatever was found.
        FAILURE: It was asked rightly, and what came of it is wrong.
        USAGE: It was asked wrongly: an option, a setting, a file that is not there or not what it should be, a name
            that nothing has.
        UNHEALTHY: Something that it needs is not there or not well: a stack, a service, a package.
    """

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNHEALTHY = 3


class CommandError(Exception):
    """An expected failure: shown without a traceback.

    Args:
        message: What is wrong.
        next_step: What to try next; empty when the message says it.
        status: Exit status.
    """

    def __init__(self, message: str, *, next_step: str = "", status: ExitStatus = ExitStatus.FAILURE) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.status = status


@contextmanager
def needing(what: str, next_step: str) -> Iterator[None]:
    """Imports inside that fail say that ``what`` needs a package, and how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandError(f"{what} {error.name}", next_step=next_step, status=ExitStatus.UNHEALTHY) from error


def kafka_away(error: Exception) -> CommandError:
    """Kafka does not answer; ``error`` says where it should be."""
    return CommandError(
        str(error),
        next_step=f"evenkeel stack status, or check {SETTINGS}",
        status=ExitStatus.UNHEALTHY,
    )
