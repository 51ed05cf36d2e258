"""What all jobs of a scheduler share."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.scheduler.adapters.planner_process import PlannerProcess
from evenkeel.services.scheduler.adapters.ranks.tls import RankTls
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.dispatch.flight import FlightTimes
from evenkeel.services.scheduler.jobs.rules import Rules
from evenkeel.services.scheduler.leadership import Alone, Leadership
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.processes import Spawn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts(Rules):
    """What all jobs share, beside the rules.

    Attributes:
        store: The history.
        metrics: Counts.
        planner: Is asked for plans.
        spawn: Starts tasks that the service owns.
        times: Deadlines of flights.
        reports: Makes, for a job's id and token, what is told of that job's broken streams and probes.
        clock: Unix seconds.
        rank_tls: How ranks are talked to; None = plain.
        leadership: Whether this scheduler is in charge, and in which term.
    """

    store: Store
    metrics: SchedulerMetrics
    planner: PlannerProcess
    spawn: Spawn
    reports: Callable[[str, str], JobEvents]
    times: FlightTimes = field(default_factory=FlightTimes)
    clock: Callable[[], float] = time.time
    rank_tls: RankTls | None = None
    leadership: Leadership = field(default_factory=Alone)

    def now(self) -> datetime:
        """What the clock says."""
        return datetime.fromtimestamp(self.clock(), UTC)
