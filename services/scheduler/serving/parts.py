"""What all jobs of a scheduler share."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import Solution
from evenkeel.services.scheduler.adapters.ranks.tls import RankTls
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.dispatch.flight import FlightTimes
from evenkeel.services.scheduler.domain.suspicion import ProbeOutcome
from evenkeel.services.scheduler.jobs.rules import Rules
from evenkeel.services.scheduler.leadership import Alone, Leadership
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.processes import Spawn


class JobReports(Protocol):
    """Where that goes which the scheduler itself sees of one job's processes."""

    async def stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
        """A process's stream broke and its controller does not answer any more; waits for as long as Kafka is away."""
        ...

    async def probed(self, outcome: ProbeOutcome) -> None:
        """A suspect was probed beside a peer."""
        ...


class Planner(Protocol):
    """Who answers questions; any other error than the one here means that it cannot just now."""

    async def solve(self, situation: Situation, *, is_urgent: bool = False) -> Solution:
        """The best layout for a situation; what is urgent is not waited for where the planner is slow.

        Raises:
            NoPlanError: Nothing can be made of the live ranks.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts(Rules):
    """What all jobs share, beside the rules.

    Attributes:
        store: The history.
        metrics: Counts.
        planner: Is asked for plans.
        spawn: Starts tasks that the service owns.
        times: Deadlines of flights.
        clock: Unix seconds.
        rank_tls: How ranks are talked to; None = plain.
        leadership: Whether this scheduler is in charge, and in which term.
    """

    store: Store
    metrics: SchedulerMetrics
    planner: Planner
    spawn: Spawn
    times: FlightTimes = field(default_factory=FlightTimes)
    clock: Callable[[], float] = time.time
    rank_tls: RankTls | None = None
    leadership: Leadership = field(default_factory=Alone)

    def now(self) -> datetime:
        """What the clock says."""
        return datetime.fromtimestamp(self.clock(), UTC)
