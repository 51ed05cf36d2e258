"""What goes wrong in the watch stays out of the training loop: it is counted, and each kind of it is said once."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

_logger = logging.getLogger("evenkeel")
_said: set[str] = set()


def say_once(kind: str, message: str, *arguments: object, error: Exception | None = None) -> None:
    """Warn of one kind of trouble, the first time that this process meets it."""
    if kind not in _said:
        _said.add(kind)
        _logger.warning(message, *arguments, exc_info=error)


class Guard:
    """Counts the errors of one run's watch. Any thread.

    Attributes:
        num_errors: Errors that were kept from the training loop so far.
    """

    def __init__(self) -> None:
        self.num_errors = 0

    def note(self, where: str, error: Exception) -> None:
        """An error was met where a training loop would have ended by it."""
        self.num_errors += 1
        kind = f"{where}: {type(error).__name__}"
        say_once(kind, "%s: %s; training goes on, measured in part", kind, error, error=error)

    def hook(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function, to be registered with a library that lets errors of its hooks through."""

        @wraps(function)
        def guarded(*arguments: Any, **named: Any) -> None:
            try:
                function(*arguments, **named)
            except Exception as error:
                self.note(function.__qualname__, error)

        return guarded
