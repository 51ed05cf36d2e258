"""How much a search may still do: counted work, a deadline, or both."""

from collections.abc import Callable


class Budget:
    """What a search has spent, as a part of what it may spend.

    Args:
        evaluations: Schedules that may be made. Without a deadline this alone decides, and the same case gives the same
            plan.
        deadline_seconds: Time that may pass; None is no limit.
        clock: Seconds from any origin; needed with a deadline.
    """

    def __init__(
        self, evaluations: int, *, deadline_seconds: float | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        if evaluations < 1 or (deadline_seconds is not None and (deadline_seconds <= 0 or clock is None)):
            raise ValueError("a budget needs one evaluation or more, and a clock for a deadline above 0 seconds")
        self._evaluations = evaluations
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._begin = clock() if clock is not None else 0.0
        self._done = 0

    def charge(self) -> None:
        """Counts one schedule."""
        self._done += 1

    @property
    def evaluations(self) -> int:
        """Schedules made so far."""
        return self._done

    @property
    def spent(self) -> float:
        """The part that is used up; 1 or more is the end."""
        part = self._done / self._evaluations
        if self._deadline_seconds is not None and self._clock is not None:
            part = max(part, (self._clock() - self._begin) / self._deadline_seconds)
        return part
