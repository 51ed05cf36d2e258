"""Waiting for something that is away: growing pauses, and one line in the log per change of state."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import structlog

from evenkeel.contracts import kafka_security

_log = structlog.get_logger(__name__)

T = TypeVar("T")

# By the first word of a dependency's name: what leads there. A wrong password looks like an outage to who only waits.
_SETTINGS = {
    "kafka": kafka_security.SETTINGS,
    "postgres": "EVENKEEL_DATABASE_URL",
}


class Backoff:
    """Pauses that double from ``first_seconds`` to ``longest_seconds``, each shortened by up to a half at random."""

    def __init__(
        self,
        *,
        first_seconds: float = 0.05,
        longest_seconds: float = 2.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._uniform = uniform
        self._next_seconds = first_seconds

    def next_seconds(self) -> float:
        """How long to pause now; the next answer is longer."""
        pause = self._next_seconds
        self._next_seconds = min(pause * 2, self._longest_seconds)
        return pause * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something worked: start over with the shortest pause."""
        self._next_seconds = self._first_seconds


class Reachability:
    """Whether a dependency answers; says so in the log once per change, and tells whoever asked to be told."""

    def __init__(self, name: str, on_change: Callable[[bool, str], None] | None = None) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            name: What is reached, for the log: ``kafka``, ``postgres``.
            on_change: Called with (reachable, what is wrong) at each change, and once at the first report.
        """
        self._name = name
        self._on_change = on_change
        self._reachable: bool | None = None
        self._said_down = False
        self._changed = asyncio.Event()

    @property
    def reachable(self) -> bool:
        """True once a report said so and none has said otherwise since."""
        return self._reachable is True

    def up(self) -> None:
        """Report that the dependency answered."""
        if self._reachable is True:
            return
        _log.info("reachable again" if self._said_down else "reachable", dependency=self._name)
        self._reachable, self._said_down = True, False
        self._changed.set()
        if self._on_change:
            self._on_change(True, "")

    def down(self, error: BaseException) -> None:
        """Report that the dependency did not answer; we go on trying."""
        if self._reachable is False:
            return
        settings = _SETTINGS.get(self._name.partition(" ")[0], "")
        problem = _in_words(error) + (f"; see {settings}" if settings else "")
        if not self._said_down:
            _log.warning("unreachable, waiting for it", dependency=self._name, error=problem)
        self._reachable, self._said_down = False, True
        self._changed.set()
        if self._on_change:
            self._on_change(False, problem)

    async def follow(self) -> AsyncIterator[bool]:
        """Whether the dependency answers: now, and after each change; for one follower, without end."""
        while True:
            self._changed.clear()
            yield self.reachable
            await self._changed.wait()

    def forget(self) -> None:
        """Nobody waits for the dependency any more: what was last reported need not be so now. The log keeps quiet."""
        if self._reachable is False:
            self._reachable = None
            if self._on_change:
                self._on_change(True, "")


def _in_words(error: BaseException) -> str:
    """One line: libraries' errors go over several, and a time limit of our own says nothing."""
    # What SQLAlchemy adds to the driver's error is a statement, and a link to a page about both.
    told = getattr(error, "orig", None) or error
    name, text = type(told).__name__, " ".join(str(told).split())
    text = text or ("no answer in time" if isinstance(error, TimeoutError) else "")
    return f"{name}: {text.removeprefix(f'{name}: ')}".removesuffix(": ")[:300]


async def persist(
    operation: Callable[[], Awaitable[T]],
    *,
    transient: tuple[type[BaseException], ...],
    reachability: Reachability,
    backoff: Backoff | None = None,
) -> T:
    """Runs ``operation`` until it works, pausing after each transient error; anything else passes through.

    Args:
        operation: What to try; called again from the start each time.
        transient: Errors that mean that the dependency is away.
        reachability: Told about every outcome.
        backoff: Pauses between attempts.
    """
    backoff = backoff or Backoff()
    while True:
        try:
            result = await operation()
        except transient as error:
            reachability.down(error)
            await asyncio.sleep(backoff.next_seconds())
        else:
            reachability.up()
            return result
