"""An event loop on which time passes only when nothing else is left to do."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class NothingLeftToDoError(RuntimeError):
    """Everybody waits for everybody, and no timer runs."""


class _Selector(selectors.SelectSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise NothingLeftToDoError
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs real coroutines on virtual seconds; threads' work is done at once.

    Attributes:
        now: Virtual seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done
