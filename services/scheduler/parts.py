"""What all jobs of a scheduler share."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.services.scheduler.adapters.rank_tls import RankTls
from evenkeel.services.scheduler.adapters.store import Store
from evenkeel.services.scheduler.dispatch.two_phase import FlightTimes
from evenkeel.services.scheduler.leadership import Alone, Leadership
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.plans.decision import DecisionRule
from evenkeel.services.scheduler.processes import Spawn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """What all jobs share.

    Attributes:
        store: The history.
        metrics: Counts.
        spawn: Starts tasks that the service owns.
        rule: When a plan pays.
        transition: What transitions cost.
        times: Deadlines of flights.
        second_look_seconds: After a layout was kept with somebody ill, until that is weighed again; each time longer.
        registration_seconds: How long a recovery waits for ranks that have not registered yet; they are coming up.
        profile_seconds: How long anything but a recovery waits for a job's first profile: after a restart it is on its
            way, and without it only the ratios of predictions mean anything.
        ended_seconds: After all processes of a job that nobody can reshape are done, until the job counts as finished.
        start_deadline_seconds: How long the first of a job's processes may take to register; then it is stuck.
        clock: Unix seconds.
        rank_tls: How ranks are talked to; None = plain.
        leadership: Whether this scheduler is in charge, and in which term.
    """

    store: Store
    metrics: SchedulerMetrics
    spawn: Spawn
    rule: DecisionRule = field(default_factory=DecisionRule)
    transition: TransitionCosts = field(default_factory=TransitionCosts)
    times: FlightTimes = field(default_factory=FlightTimes)
    second_look_seconds: float = 30.0
    registration_seconds: float = 30.0
    profile_seconds: float = 15.0
    ended_seconds: float = 60.0
    start_deadline_seconds: float = 120.0
    clock: Callable[[], float] = time.time
    rank_tls: RankTls | None = None
    leadership: Leadership = field(default_factory=Alone)

    def now(self) -> datetime:
        """What the clock says."""
        return datetime.fromtimestamp(self.clock(), UTC)
