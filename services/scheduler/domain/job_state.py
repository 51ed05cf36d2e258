"""What the scheduler knows of one job. Immutable; changed in :mod:`evenkeel.services.scheduler.domain.transitions`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from evenkeel.history.records import JobRecord, RankExitRecord
from evenkeel.history.vocabulary import JobState, VerdictKind
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.planning.costs.cost_model import ASSUMED_WORKLOAD, CostModel, Workload
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.situation import Situation
from evenkeel.services.scheduler.domain.parts import AppliedPlan, OpenIncident, PlanInFlight, RankInfo
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason
from evenkeel.services.scheduler.plans.hindsight import Hindsight
from evenkeel.services.scheduler.plans.outlook import Outlook

HEALTHY = 0.97
"""A throughput from here on counts as 1: differences of a few percent are not worth an epoch."""
SAME_THROUGHPUT = 0.05
"""Ranks whose throughputs differ by no more are as they were planned for."""


class PlanNeed(StrEnum):
    """What a job's state asks for."""

    NONE = "none"
    BOUNDARY = "boundary"
    """Something changed; a plan may pay."""

    RECOVER = "recover"
    """Somebody in the layout is gone: there must be a plan."""

    ADVICE = "advice"
    """Something changed in a job that cannot be reshaped: a person should know what a plan would bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKnowledge:
    """One job.

    Attributes:
        job_id: Its id.
        tenant: Who may read its history.
        name: For a person.
        model: The model's costs.
        registered_at: When it was registered.
        epoch: Epoch in force.
        top_epoch: Highest epoch that any plan was ever made for.
        layouts: Layout of every decided epoch.
        ranks: The process of each rank that counts now.
        newcomers: Later processes, each waiting until nobody counts on the earlier one of its rank.
        incidents: Unresolved ones, oldest first.
        seen: Ids of all verdicts so far.
        flight: Plan on its way.
        unmeasured: Plan in force whose effect is not measured yet.
        workload: From the newest profile; None before the first.
        correction: Of predictions, from the newest measured epoch.
        changed: True when something happened that a plan was not yet considered for.
        cause: Incident that the next plan answers.
        answered: Throughputs that the layout in force was planned for; empty = everybody healthy.
        outlook: What its failures so far say about the next ones.
        hindsight: How far its measured plans fell short of their predictions.
        stuck: Why no plan can keep the job going; None = it goes on.
        vacant: Ranks of the layout in force that have a new process, which holds nothing of it yet.
        iteration: Newest profiled iteration.
        again_since_unix_seconds: Since when profiles are of iterations before it; 0 = they are not.
        exits: How processes (rank, incarnation) ended, as far as that was reported.
        finished: The job has ended.
        running_since_unix_seconds: When the layout in force was seen to run; 0 = before anybody looked.
    """

    job_id: str
    tenant: str
    name: str
    model: ModelSpec
    registered_at: datetime
    epoch: int = 0
    top_epoch: int = 0
    layouts: Mapping[int, Layout]
    ranks: Mapping[int, RankInfo]
    newcomers: Mapping[int, RankInfo] = field(default_factory=dict)
    incidents: tuple[OpenIncident, ...] = ()
    seen: frozenset[str] = frozenset()
    flight: PlanInFlight | None = None
    unmeasured: AppliedPlan | None = None
    workload: Workload | None = None
    correction: float = 1.0
    changed: bool = False
    cause: str | None = None
    answered: Mapping[int, float] = field(default_factory=dict)
    outlook: Outlook = field(default_factory=Outlook)
    hindsight: Hindsight = field(default_factory=Hindsight)
    stuck: Stuck | None = None
    vacant: frozenset[int] = frozenset()
    iteration: int = -1
    again_since_unix_seconds: float = 0.0
    exits: Mapping[tuple[int, int], RankExitRecord] = field(default_factory=dict)
    finished: bool = False
    running_since_unix_seconds: float = 0.0

    @property
    def home(self) -> Layout:
        """Its full shape."""
        return self.layouts[0]

    @property
    def layout(self) -> Layout:
        """The layout in force."""
        return self.layouts[self.epoch]

    @property
    def can_reshape(self) -> bool:
        """False when the training loop of some rank cannot apply plans: then nobody takes any to this job."""
        return all(info.can_reshape for info in self.ranks.values())

    @property
    def usable(self) -> dict[int, float]:
        """Throughput of every rank that a plan may use: alive, with a known controller where it is needed."""
        can_reshape = self.can_reshape
        return {
            rank: info.throughput
            for rank, info in sorted(self.ranks.items())
            if info.alive and (info.address or not can_reshape)
        }

    @property
    def living(self) -> dict[tuple[int, int], RankInfo]:
        """Processes that live, as far as is known, or wait to take their ranks over."""
        infos = (*self.ranks.values(), *self.newcomers.values())
        return {info.process: info for info in infos if info.alive}

    @property
    def counted_on(self) -> set[int]:
        """Ranks of the layout in force and of the plan in flight."""
        return {*self.layout.ranks, *(self.flight.record.layout.ranks if self.flight else ())}

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks that are counted on, by the layout in force or by the plan in flight, and are gone."""
        return tuple(rank for rank in sorted(self.counted_on) if rank in self.vacant or not self.ranks[rank].alive)

    @property
    def unregistered(self) -> tuple[int, ...]:
        """Ranks of the layout in force that are alive, as far as known, and whose controllers are not known yet."""
        infos = (self.ranks[rank] for rank in self.layout.ranks)
        return tuple(info.rank for info in infos if info.alive and not info.address)

    @property
    def at_home(self) -> bool:
        """True when the full shape is in force, and devices and links are healthy: a planner is asked nothing then."""
        healthy = not self.links and all(info.alive and info.throughput >= HEALTHY for info in self.ranks.values())
        as_registered = self.layout.mix == self.home.mix and not self.layout.routes
        return healthy and self.layout.replicas == self.home.replicas and as_registered

    @property
    def links(self) -> tuple[SlowLink, ...]:
        """Links that are slow, as open incidents have them; of a group it is not known which of its links it is."""
        return tuple(
            SlowLink(ranks=tuple(culprit.rank for culprit in incident.culprits), factor=1.0 / incident.throughput)
            for incident in self.incidents
            if incident.kind == VerdictKind.COMMUNICATION_SLOW
            and len(incident.culprits) <= 2
            and 0.0 < incident.throughput < HEALTHY
        )

    @property
    def stuck_by(self) -> StuckReason | None:
        """What it is stuck for; None = it goes on."""
        return None if self.stuck is None else self.stuck.reason

    @property
    def need(self) -> PlanNeed:
        """What the state asks for."""
        if self.finished or self.stuck_by is StuckReason.NOT_STARTED:
            return PlanNeed.NONE
        if not self.can_reshape:
            return PlanNeed.ADVICE if self.changed and not self.at_home else PlanNeed.NONE
        if self.lost:
            return PlanNeed.RECOVER
        if not self.changed or self.flight is not None or self.stuck or self.at_home:
            return PlanNeed.NONE
        return PlanNeed.BOUNDARY

    @property
    def state(self) -> JobState:
        """State in the words of the fleet API."""
        if self.finished:
            return JobState.FINISHED
        if self.stuck:
            return JobState.STUCK
        if self.flight is None and not self.can_reshape:
            return JobState.DEGRADED if self.lost else JobState.RUNNING
        return JobState.RESHAPING if self.flight is not None or self.lost else JobState.RUNNING

    @property
    def proportional_bound(self) -> float:
        """Sum of live throughputs, each at most 1, over the number of devices at the start."""
        live = sum(min(1.0, info.throughput) for info in self.ranks.values() if info.alive)
        return live / (len(self.home.ranks) + len(self.home.standbys))

    def situation(self, transition: TransitionCosts) -> Situation:
        """The question that the planner is asked."""
        usable = self.usable
        cost = CostModel(self.model, self.workload or ASSUMED_WORKLOAD, self.correction if self.workload else 1.0)
        return Situation(
            layout=self.layout,
            home=self.home,
            throughputs=usable,
            cost=cost,
            holders=(frozenset(usable) & frozenset(self.layout.ranks)) - self.vacant,
            transition=transition,
            domains={rank: info.node for rank, info in self.ranks.items() if info.node},
            links=self.links,
        )

    def incidents_of(self, rank: int, kinds: Collection[str]) -> list[OpenIncident]:
        """Open incidents of these kinds that accuse a rank, oldest first."""
        return [one for one in self.incidents if one.kind in kinds and rank in one.ranks]

    def with_rank(self, info: RankInfo) -> "JobKnowledge":
        """The job with one rank's process replaced."""
        return replace(self, ranks={**self.ranks, info.rank: info})

    def with_incident(self, incident: OpenIncident) -> "JobKnowledge":
        """The job with an incident opened, or as it is now."""
        known = {one.incident_id: one for one in self.incidents}
        return replace(self, incidents=tuple((known | {incident.incident_id: incident}).values()))

    def without(self, incidents: Collection[OpenIncident]) -> "JobKnowledge":
        """The job after these incidents."""
        return replace(self, incidents=tuple(one for one in self.incidents if one not in incidents))


def new_job(record: JobRecord) -> JobKnowledge:
    """The state of a job that just registered."""
    ranks = (*record.layout.ranks, *record.layout.standbys)
    return JobKnowledge(
        job_id=record.job_id,
        tenant=record.tenant,
        name=record.name,
        model=record.model,
        registered_at=record.registered_at,
        layouts={0: record.layout},
        ranks={rank: RankInfo(rank=rank) for rank in ranks},
    )
