"""The lives of one replica on its host: which of its ranks live, and when it is started again. Pure."""

from dataclasses import dataclass, field

from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_EVICTED
from evenkeel.trainer_sdk.launcher.processes.restarts import QUICK_FAILURE_SECONDS, backed_off_seconds


@dataclass(slots=True)
class Replica:
    """Times are by one clock, in seconds.

    Attributes:
        number: Which replica of the job.
        incarnation: Its lives before this one; -1 before the first.
        alive: Ranks of the job that have a process.
        token: Of this life.
        ends_at: When whoever is left of this life is ended.
        statuses: How ranks of this life ended: exit statuses, or minus a signal.
        due_at: When its next life begins; None while it lives.
        is_over: It has finished, or is given up.
    """

    number: int
    incarnation: int = -1
    alive: set[int] = field(default_factory=set)
    token: str = ""
    ends_at: float = float("inf")
    statuses: list[int] = field(default_factory=list)
    due_at: float | None = 0.0
    is_over: bool = False
    _started_at: float = 0.0
    _num_quick: int = 0

    def begin(self, now: float, token: str) -> None:
        """Another life; its ranks are not there yet."""
        self.incarnation += 1
        self._started_at, self.due_at, self.statuses = now, None, []
        self.token, self.ends_at = token, float("inf")

    def ended(self, rank: int, status: int) -> bool:
        """One of its ranks has ended; whether it is the first of this life that failed."""
        first = bool(status) and not any(self.statuses)
        self.alive.discard(rank)
        self.statuses.append(status)
        return first

    @property
    def has_finished(self) -> bool:
        """All of its ranks have ended, as they should."""
        return not self.alive and bool(self.statuses) and not any(self.statuses)

    def plan_restart(self, now: float) -> None:
        """It lives again soon, later each time that it ends at once by itself."""
        evicted = EXIT_EVICTED in self.statuses
        quick = now - self._started_at < QUICK_FAILURE_SECONDS and not evicted
        self._num_quick = self._num_quick + 1 if quick else 0
        self.due_at = now + backed_off_seconds(0.0, self._num_quick)
