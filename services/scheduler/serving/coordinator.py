"""All jobs of this scheduler: where the fleet API, verdicts and profiles meet.

Not covered: jobs dealt out to several schedulers. One at a time is in charge (``adapters/lease.py``).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import structlog

from evenkeel.history import reads
from evenkeel.history.errors import FinishedJobError, JobIdUsedError, UnknownJobError
from evenkeel.history.records import JobRecord, RankExitRecord, RankRecord, StoredJob
from evenkeel.history.vocabulary import JobState
from evenkeel.services.scheduler.jobs import events
from evenkeel.services.scheduler.serving.faults import JobAwayError, is_fault
from evenkeel.services.scheduler.serving.news import JobNews, JobView
from evenkeel.services.scheduler.serving.parts import Parts
from evenkeel.services.scheduler.serving.served_job import ServedJob

_log = structlog.get_logger(__name__)

_MOST_AT_ONCE = 25
"""Jobs that are read from the history together: some may have thousands of ranks, and a read may not take seconds."""


class Coordinator:
    """Every unfinished job. Belongs to the event loop's thread.

    Errors of what the fleet API calls: :class:`UnknownJobError`, the database's own when it is away, and
    :class:`JobAwayError` from what changes a job that begins anew just now.
    """

    def __init__(self, parts: Parts) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            parts: What all jobs share.
        """
        self._parts = parts
        self._jobs: dict[str, ServedJob] = {}
        parts.metrics.jobs.set_function(lambda: len(self._jobs))
        for state in JobState:
            if state is not JobState.FINISHED:
                parts.metrics.jobs_in_state.labels(state).set_function(partial(self._num_jobs_in, state))

    def _num_jobs_in(self, state: JobState) -> int:
        return sum(job.state is state for job in self._jobs.values())

    async def load(self) -> None:
        """Take up every unfinished job of the history; call until it returns, before anything else.

        Raises:
            OperationalError, InterfaceError, OSError, TimeoutError: The database is away.
        """
        waiting = [job_id for job_id in await self._parts.store.read(reads.unfinished_jobs) if job_id not in self._jobs]
        for first in range(0, len(waiting), _MOST_AT_ONCE):
            await self._take_up(waiting[first : first + _MOST_AT_ONCE])

    async def _take_up(self, job_ids: Sequence[str]) -> None:
        try:
            stored = await self._parts.store.load_jobs(job_ids)
        except Exception as error:
            if not is_fault(error):
                raise
            stored = {}  # one of them cannot be read: each alone finds out whether it is the one
        for job in [self._begin(job_id, stored.get(job_id)) for job_id in job_ids]:
            await job.begun()

    async def register_job(self, job: JobRecord) -> JobView:
        """Make a job known, durably, before returning.

        Raises:
            JobConflictError: The id is taken by another job.
        """
        if job.job_id not in self._jobs and await self._has_finished(job.job_id):
            raise JobIdUsedError(job.job_id)
        await self._parts.store.save([job])
        served = self._jobs.get(job.job_id)
        if served is None:
            _log.info("job registered", job_id=job.job_id, ranks=len(job.layout.ranks))
            served = self._begin(job.job_id)
        await served.begun()
        view = served.view()
        if view is None:
            raise JobAwayError(job.job_id)
        return view

    async def register_ranks(self, job_id: str, ranks: Sequence[RankRecord]) -> int:
        """Make processes of a job's ranks known, durably, all or none; idempotent by (job, rank, incarnation).

        Returns:
            The scheduler's term.

        Raises:
            FinishedJobError: The job has ended.
            UnknownRankError: The job's layout has no such rank.
        """
        job = await self._served(job_id)
        if job is None:
            raise FinishedJobError(job_id)
        await job.take(events.RanksRegistered(tuple(ranks)))
        return self._parts.leadership.term

    async def report_exits(self, job_id: str, exits: Sequence[RankExitRecord]) -> None:
        """Processes of a job's ranks have ended; durable on return, and the second report of a process is dropped.

        Raises:
            UnknownRankError: The job's layout has no such rank.
        """
        if (job := await self._served(job_id)) is not None:
            await job.take(events.ExitsReported(tuple(exits)))

    async def finish_job(self, job_id: str, failure: str = "") -> None:
        """End a job; idempotent. Its watchers' iterators end. ``failure`` says why it failed; empty: it did not."""
        if (job := await self._served(job_id)) is not None:
            await job.finish(failure)

    def job(self, job_id: str) -> JobView | None:
        """A job that is served here, or None for one that is unknown or finished. Never blocks."""
        job = self._jobs.get(job_id)
        return None if job is None else job.view()

    def watch(self, job_id: str) -> AsyncIterator[JobNews]:
        """The job as it is, then its news until it is finished; a watcher that falls too far behind is ended."""
        job = self._jobs.get(job_id)
        if job is None:
            raise UnknownJobError(job_id)
        return job.watch()

    def tell(self, job_id: str, event: events.Event) -> "asyncio.Future[None]":
        """The detector says something of a job: done when what it leads to is durable, or nobody serves the job here.

        It waits for a job that begins anew; cancelled before its turn, it never was.

        Raises:
            JobFailedError: By the future: the job has failed at it twice.
        """
        job = self._jobs.get(job_id)
        if job is not None:
            return job.tell(event)
        if isinstance(event, events.VerdictsTaken):
            _log.warning("verdicts about a job that does not run here", job_id=job_id, verdicts=len(event.verdicts))
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told.set_result(None)
        return told

    async def _has_finished(self, job_id: str) -> bool:
        known = await self._parts.store.read(reads.get_job, job_id)
        return known is not None and known.state is JobState.FINISHED

    async def _served(self, job_id: str) -> ServedJob | None:
        """The job; None for one that has finished."""
        job = self._jobs.get(job_id)
        if job is None and not await self._has_finished(job_id):
            raise UnknownJobError(job_id)
        return job

    def _begin(self, job_id: str, stored: StoredJob | None = None) -> ServedJob:
        job = self._jobs[job_id] = ServedJob(job_id, self._parts, self._jobs.pop)
        job.begin(stored)
        return job
