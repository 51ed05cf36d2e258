"""What the fleet API needs of others: of the coordinator, and of the history. The API itself translates and guards.

All methods run on the service's event loop.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.records import JobRecord, PlanStatus, RankExitRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.services.scheduler.domain.job_state import RankInfo
from evenkeel.services.scheduler.domain.standing import Standing

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as it is now; fields as in ``evenkeel.scheduler.v1.Job``, ranks ascending.

    A rank counts as alive once it has registered, until it is gone or done.
    """

    job_id: str
    tenant: str
    name: str
    model: ModelSpec
    layout: Layout
    epoch: int
    state: JobState
    registered_at: datetime
    ranks: tuple[RankInfo, ...]
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
    """The past; :class:`.store.store.Store` implements it."""

    async def read(
        self,
        query: Callable[Concatenate[AsyncConnection, Asked], Awaitable[Answer]],
        *args: Asked.args,
        **kwargs: Asked.kwargs,
    ) -> Answer:
        """What one of :mod:`evenkeel.history.reads` finds.

        Raises:
            OperationalError, InterfaceError, DatabaseAwayError: The database is away.
            PageError: What is asked for is a page that cannot be.
        """
        ...
