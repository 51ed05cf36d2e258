"""What the fleet API needs of others: of the coordinator, and of the history. The API itself translates and guards.

All methods run on the service's event loop.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from evenkeel.history.reads import Page
from evenkeel.history.records import (
    IncidentState,
    JobRecord,
    JobStatus,
    PlanStatus,
    RankExitRecord,
    RankRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import JobState
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.services.scheduler.domain.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank as the scheduler knows it now.

    Attributes:
        rank: Rank.
        incarnation: Newest incarnation.
        node: Node it runs on.
        device: Device it computes on.
        address: host:port of its controller.
        alive: As far as known; False until it has registered.
        throughput: Estimate, 1.0 = healthy, 0 = dead.
    """

    rank: int
    incarnation: int
    node: str
    device: str
    address: str
    alive: bool
    throughput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as it is now.

    Attributes:
        job_id: Its id.
        tenant: Who may read its history.
        name: For a person.
        model: The model's costs.
        layout: Layout in force.
        epoch: Epoch in force.
        state: State.
        registered_at: When it was registered.
        ranks: Ascending by rank.
        proportional_bound: Sum of live throughputs over the number of devices at the start.
        can_reshape: False when some rank's training loop cannot apply plans.
        problem: Why it is stuck; empty in any other state.
        standing: What its ranks do.
    """

    job_id: str
    tenant: str
    name: str
    model: ModelSpec
    layout: Layout
    epoch: int
    state: JobState
    registered_at: datetime
    ranks: tuple[RankView, ...]
    proportional_bound: float
    can_reshape: bool = True
    problem: str = ""
    standing: Standing = field(default_factory=Standing)


JobNews = JobView | VerdictRecord | PlanStatus
"""What a watcher of a job gets: the job after a change, a verdict that arrived, a plan that changed state."""


class FleetPort(Protocol):
    """The coordinator as the fleet API sees it.

    Errors of all methods: :class:`evenkeel.history.errors.UnknownJobError` when there is no such job, and the
    database's own when it is away; :class:`evenkeel.services.scheduler.serving.faults.JobAwayError` from what changes a
    job that begins anew just now. The API turns them into status codes.
    """

    async def register_job(self, job: JobRecord) -> JobView:
        """Make a job known, durably, before returning.

        Raises:
            JobConflictError: The id is taken by another job.
        """
        ...

    async def register_ranks(self, job_id: str, ranks: Sequence[RankRecord]) -> None:
        """Make processes of a job's ranks known, durably, all or none; idempotent by (job, rank, incarnation).

        Raises:
            FinishedJobError: The job has ended.
            UnknownRankError: The job's layout has no such rank.
        """
        ...

    async def report_exits(self, job_id: str, exits: Sequence[RankExitRecord]) -> None:
        """Processes of a job's ranks have ended; durable on return, and the second report of a process is dropped.

        Raises:
            UnknownRankError: The job's layout has no such rank.
        """
        ...

    async def finish_job(self, job_id: str, failure: str = "") -> None:
        """End a job; idempotent. Its watchers' iterators end.

        Args:
            job_id: The job.
            failure: Why it failed; empty when it did not.
        """
        ...

    def job(self, job_id: str) -> JobView | None:
        """A job that the coordinator holds, or None for one that is unknown or finished. Never blocks."""
        ...

    def watch(self, job_id: str) -> AsyncIterator[JobNews]:
        """The job as it is, then everything that happens to it, until it is finished.

        A watcher that falls behind by more than the implementation's bound is ended, not waited for.
        """
        ...


class HistoryPort(Protocol):
    """What the fleet API reads of the past; :class:`.store.store.Store` implements it.

    Errors of all methods: the database's own when it is away; of lists, ``PageError`` for a page that cannot be.
    """

    async def job_token(self, job_id: str) -> str | None:
        """A job's token, or None for an unknown job."""
        ...

    async def get_job(self, job_id: str) -> JobStatus | None:
        """One job, or None."""
        ...

    async def get_incident(self, incident_id: str) -> IncidentState | None:
        """One incident, or None."""
        ...

    async def get_plan(self, plan_id: str) -> PlanStatus | None:
        """One plan, or None."""
        ...

    async def list_jobs(self, *, page_size: int, page_token: str) -> Page[JobStatus]:
        """Jobs, newest first."""
        ...

    async def list_incidents(self, *, job_id: str, page_size: int, page_token: str) -> Page[IncidentState]:
        """Incidents, newest first; of all jobs if ``job_id`` is empty."""
        ...

    async def list_verdicts(self, *, job_id: str, page_size: int, page_token: str) -> Page[VerdictRecord]:
        """Verdicts, newest first; of all jobs if ``job_id`` is empty."""
        ...

    async def list_plans(self, *, job_id: str, page_size: int, page_token: str) -> Page[PlanStatus]:
        """Plans, newest first; of all jobs if ``job_id`` is empty."""
        ...
