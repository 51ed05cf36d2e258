"""What goes into the history and comes out of it: plain values, no SQL. Times carry a zone; seconds are floats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanMode, PlanState
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as it registers; ``layout`` is that of epoch 0. An empty tenant becomes the default one."""

    job_id: str
    name: str
    model: ModelSpec
    layout: Layout
    registered_at: datetime
    job_token: str = field(repr=False)
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One process of a rank: its node and device, and ``address`` (host:port) of its controller.

    ``can_reshape`` is False for a training loop that cannot apply plans.
    """

    job_id: str
    rank: int
    incarnation: int
    node: str
    device: str
    address: str
    process_id: int
    registered_at: datetime
    can_reshape: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExitRecord:
    """How one process of a rank ended.

    Attributes:
        job_id: Its job.
        rank: Its rank.
        incarnation: Which process of it.
        code: Exit status; 0 when a signal ended it.
        signal: Signal that ended it; 0 when none did.
        last_line: Last line of the traceback of the error that it ended with; empty when it raised none.
        lost_peer: The error is that a connection to a peer broke.
        at: When.
    """

    job_id: str
    rank: int
    incarnation: int
    code: int
    at: datetime
    signal: int = 0
    last_line: str = ""
    lost_peer: bool = False

    @property
    def process(self) -> tuple[int, int]:
        """Rank and incarnation."""
        return self.rank, self.incarnation

    @property
    def is_program_error(self) -> bool:
        """Whether the program is at fault, and no device, node or peer."""
        return bool(self.last_line) and not self.lost_peer


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritRecord:
    """One process accused or cleared."""

    rank: int
    incarnation: int
    node: str
    device: str

    @property
    def process(self) -> tuple[int, int]:
        """Rank and incarnation."""
        return self.rank, self.incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRecord:
    """One fact behind a verdict."""

    name: str
    value: float
    unit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRecord:
    """One finding; ``kind`` is a :class:`~evenkeel.history.vocabulary.VerdictKind` or a newer word."""

    verdict_id: str
    job_id: str
    kind: str
    culprits: tuple[CulpritRecord, ...]
    throughput: float
    throughput_margin: float
    confidence: float
    first_iteration: int
    decided_iteration: int
    decided_at: datetime
    evidence: tuple[EvidenceRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRecord:
    """A failure as it opens: the first verdict, which must be recorded already, and who is accused."""

    incident_id: str
    job_id: str
    verdict_id: str
    kind: str
    culprits: tuple[CulpritRecord, ...]
    first_iteration: int
    throughput: float
    opened_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentEventRecord:
    """One thing that happened to an incident.

    Attributes:
        incident_id: The incident.
        kind: What; says also what ``reference`` means.
        reference: With kind, makes the event unique within the incident.
        at: When.
        throughput: Newest estimate of the culprit's throughput, if the event brings one.
        lost_seconds: Training seconds lost so far, all in all, if the event brings an account.
        detail: One line for a person.
    """

    incident_id: str
    kind: IncidentEventKind
    at: datetime
    reference: str = ""
    throughput: float | None = None
    lost_seconds: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentState(IncidentRecord):
    """An incident as it stands."""

    lost_seconds: float
    resolved_at: datetime | None
    plan_ids: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """One lever pulled, and the seconds per iteration it alone is predicted to save."""

    lever: str
    description: str
    gain_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeRecord:
    """A layout that lost, its predicted seconds per iteration, and why."""

    name: str
    predicted_seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan as it is proposed. Fields as in ``evenkeel.scheduler.v1.Plan``.

    ``throughputs`` are those of the ranks that it could use; None for a plan from before they were recorded.
    """

    plan_id: str
    job_id: str
    incident_id: str | None = None
    mode: PlanMode
    epoch: int
    layout: Layout
    actions: tuple[ActionRecord, ...] = ()
    alternatives: tuple[AlternativeRecord, ...] = ()
    idle_seconds: float = 0.0
    predicted_seconds: float = 0.0
    cost_seconds: float = 0.0
    proportional_bound: float = 0.0
    reason: str = ""
    solve_seconds: float = 0.0
    proposed_at: datetime
    throughputs: Mapping[int, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanState:
    """How a plan stands.

    Attributes:
        state: The state; each at most once per plan.
        at: When it entered it.
        first_iteration: With APPLIED: first iteration that ran under it.
        measured_seconds: With MEASURED: seconds per iteration, for the work that the plan was predicted for.
        decision: With COMMITTED: all that is needed to send the same Commit again after a restart.
        detail: One line for a person.
    """

    state: PlanState
    at: datetime
    first_iteration: int | None = None
    measured_seconds: float | None = None
    decision: Mapping[str, Any] | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEventRecord(_PlanState):
    """A plan entered a state."""

    plan_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus(_PlanState):
    """A plan as it stands: as proposed, its newest state, and what its events brought."""

    plan: PlanRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStateRecord:
    """A job enters a state."""

    job_id: str
    state: JobState
    at: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as the history knows it: ``layout`` and ``epoch`` are the newest decided ones.

    ``detail`` is what was said of its state as it entered it.
    """

    job_id: str
    tenant: str
    name: str
    model: ModelSpec
    layout: Layout
    epoch: int
    state: JobState
    num_devices: int
    registered_at: datetime
    ranks: tuple[RankRecord, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """One unfinished job with all that the scheduler needs to go on with it.

    Attributes:
        record: The job as it was registered.
        layouts: Every decided epoch's layout, by epoch.
        seen: Ids of its verdicts.
        state: How it stands, with the seats of all ranks that ever changed; None = as it was registered.
        plans: Those that the state is about, by id.
    """

    record: JobRecord
    layouts: Mapping[int, Layout]
    seen: frozenset[str] = frozenset()
    state: WorkingStateRecord | None = None
    plans: Mapping[str, PlanStatus] = field(default_factory=dict)
