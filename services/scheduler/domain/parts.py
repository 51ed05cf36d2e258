"""What a job is made of, as the scheduler knows it: processes of ranks, incidents, plans. Immutable."""

from dataclasses import dataclass
from datetime import datetime

from evenkeel.history.records import CulpritRecord, IncidentEventRecord, PlanRecord
from evenkeel.history.vocabulary import IncidentEventKind
from evenkeel.planning.costs.cost_model import Workload
from evenkeel.services.scheduler.dispatch.protocol import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """One process of a rank.

    Attributes:
        rank: Rank.
        incarnation: Which process of it.
        node: Node it runs on; empty until it registers.
        device: Device it computes on.
        address: host:port of its controller; empty until it registers.
        throughput: Estimate, 1.0 = healthy, 0 = gone as far as known.
        can_reshape: Its training loop can apply plans.
        announced: The detector said of it, a later process of its rank, that it is up.
    """

    rank: int
    incarnation: int = 0
    node: str = ""
    device: str = ""
    address: str = ""
    throughput: float = 1.0
    can_reshape: bool = True
    announced: bool = False

    @property
    def process(self) -> tuple[int, int]:
        """Rank and incarnation."""
        return self.rank, self.incarnation

    @property
    def alive(self) -> bool:
        """As far as known."""
        return self.throughput > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIncident:
    """An unresolved incident; fields as in :class:`evenkeel.history.records.IncidentState`.

    ``told_seconds`` is how much of ``lost_seconds`` the history knows.
    """

    incident_id: str
    kind: str
    culprits: tuple[CulpritRecord, ...]
    throughput: float
    opened_at: datetime
    lost_seconds: float = 0.0
    told_seconds: float = 0.0

    @property
    def ranks(self) -> set[int]:
        """The culprits' ranks."""
        return {culprit.rank for culprit in self.culprits}

    @property
    def accused(self) -> frozenset[tuple[int, int]]:
        """The culprits' processes."""
        return frozenset(culprit.process for culprit in self.culprits)

    def resolved(self, at: datetime, detail: str) -> IncidentEventRecord:
        """Its end, for the history."""
        return IncidentEventRecord(
            incident_id=self.incident_id,
            kind=IncidentEventKind.RESOLVED,
            at=at,
            lost_seconds=self.lost_seconds,
            detail=detail,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInFlight:
    """A plan on its way to the ranks.

    Attributes:
        record: The plan.
        participants: Processes (rank, incarnation) that it counts on.
        decision: What was decided on it, durably: no rank can go back from it. None = nothing yet.
    """

    record: PlanRecord
    participants: frozenset[tuple[int, int]] = frozenset()
    decision: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPlan:
    """The plan in force, until its effect is measured.

    Attributes:
        record: The plan.
        first_iteration: First iteration under it.
        workload: What the job was known to be made of when it was made; None = not known any more.
    """

    record: PlanRecord
    first_iteration: int
    workload: Workload | None = None
