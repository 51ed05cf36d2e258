"""How much a search may still do: counted work, a deadline, or both; and whoever waits can end it."""

from collections.abc import Callable
from math import ceil

DEFAULT_EVALUATIONS = 40_000


class Budget:
    """What a search has spent, as a part of what it may spend.

    Args:
        evaluations: Schedules that may be made. Without a deadline this alone decides, and the same case gives the same
            plan.
        deadline_seconds: Time that may pass; None is no limit.
        clock: Seconds from any origin; needed with a deadline.
        on_progress: Called with the part that is spent, after some schedules each time, on the thread of the search.
    """

    def __init__(
        self,
        evaluations: int,
        *,
        deadline_seconds: float | None = None,
        clock: Callable[[], float] | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        if evaluations < 1 or (deadline_seconds is not None and (deadline_seconds <= 0 or clock is None)):
            raise ValueError("a budget needs one evaluation or more, and a clock for a deadline above 0 seconds")
        self._evaluations = evaluations
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._begin = clock() if clock is not None else 0.0
        self._on_progress = on_progress
        self._done = 0
        self._is_stopped = False

    def charge(self, schedules: int) -> None:
        """Counts some schedules."""
        self._done += schedules
        if self._on_progress is not None:
            self._on_progress(self.spent)

    def stop(self) -> None:
        """Ends the search with the best it has found; from a signal handler or another thread too."""
        self._is_stopped = True

    @property
    def is_stopped(self) -> bool:
        """Whether somebody ended the search."""
        return self._is_stopped

    @property
    def evaluations(self) -> int:
        """Schedules made so far."""
        return self._done

    def left(self, until: float) -> int:
        """How many schedules may be made until this part is spent, as far as their number decides; at least 1."""
        return max(1, ceil(until * self._evaluations) - self._done)

    @property
    def passed(self) -> float:
        """The part of the time that is used up: 0 without a deadline, 1 or more is the end."""
        if self._is_stopped:
            return 1.0
        if self._deadline_seconds is None or self._clock is None:
            return 0.0
        return (self._clock() - self._begin) / self._deadline_seconds

    @property
    def spent(self) -> float:
        """The part that is used up; 1 or more is the end."""
        return max(self._done / self._evaluations, self.passed)
