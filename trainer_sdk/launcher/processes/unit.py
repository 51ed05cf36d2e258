"""What lives and dies as one on a host, such as a rank or all of a replica, and when it lives again. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED

_QUICK_FAILURE_SECONDS = 5.0
_LEAST_BACK_OFF_SECONDS = 0.1


@dataclass(slots=True)
class Unit:
    """Times are by one clock, in seconds.

    Attributes:
        ranks: Of the job.
        incarnation: The number of its newest life; one below that of the first before it.
        alive: Those of its ranks that have a process.
        ends_at: When whoever is left of this life is ended.
        statuses: How ranks of this life ended: exit statuses, or minus a signal.
        due_at: When its next life begins; None while it lives.
        is_asked_for: Somebody wants its next life at once.
        is_over: It has finished, or is not started again.
        longest_delay_seconds: From its end to its next life, where it ends at once each time.
    """

    ranks: Sequence[int]
    incarnation: int = -1
    alive: set[int] = field(default_factory=set)
    ends_at: float = float("inf")
    statuses: list[int] = field(default_factory=list)
    due_at: float | None = 0.0
    is_asked_for: bool = False
    is_over: bool = False
    longest_delay_seconds: float = 30.0
    _started_at: float = 0.0
    _num_quick: int = 0

    @property
    def is_due(self) -> bool:
        """It lives again, now or later."""
        return not self.is_over and self.due_at is not None

    @property
    def has_finished(self) -> bool:
        """All of its ranks have ended, as they should."""
        return not self.alive and bool(self.statuses) and not any(self.statuses)

    def begin(self, now: float) -> None:
        """Another life; its ranks are not there yet."""
        self.incarnation += 1
        self._started_at, self.due_at, self.statuses = now, None, []
        self.is_asked_for, self.ends_at = False, float("inf")

    def ended(self, rank: int, status: int) -> bool:
        """One of its ranks has ended; whether it is the first of this life that failed."""
        first = bool(status) and not any(self.statuses)
        self.alive.discard(rank)
        self.statuses.append(status)
        return first

    def ask_for(self, now: float) -> None:
        """It is to live again, at once where nobody of it lives."""
        self.is_over, self.is_asked_for = False, True
        if not self.alive:
            self.due_at = now

    def plan_restart(self, now: float, delay_seconds: float) -> None:
        """It lives again after a delay, later each time that it ends at once by itself."""
        quick = now - self._started_at < _QUICK_FAILURE_SECONDS and EXIT_EVICTED not in self.statuses
        self._num_quick = self._num_quick + 1 if quick else 0
        if self._num_quick > 1:  # it must not keep the machine busy
            delay_seconds = max(delay_seconds, _LEAST_BACK_OFF_SECONDS) * 2.0 ** (self._num_quick - 1)
            delay_seconds = min(delay_seconds, self.longest_delay_seconds)
        self.due_at = now + delay_seconds
