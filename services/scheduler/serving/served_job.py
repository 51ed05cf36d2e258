"""One job as the coordinator serves it: begun from its history, and begun anew where its work failed.

What the work for one job raises is a fault of its state or of our code, and comes again with a restart of the service,
for all jobs. So it ends this job's work only: all that is under way is stopped, and after a pause the job begins as it
would after a restart. Ranks train on meanwhile; decided plans are finished, undecided ones are made anew.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog

from evenkeel.history.records import JobRecord, JobStateRecord, RankExitRecord, RankRecord, StoredJob, VerdictRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.services.scheduler.adapters.fleet_port import JobNews, JobView
from evenkeel.services.scheduler.adapters.ranks.watch import StreamBroken
from evenkeel.services.scheduler.adapters.store.job_document import restored_job
from evenkeel.services.scheduler.domain.profiles import JobProfile
from evenkeel.services.scheduler.domain.suspicion import Suspicion
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.job import Job
from evenkeel.services.scheduler.jobs.machine import on, registered_job
from evenkeel.services.scheduler.serving.faults import JobAwayError, is_fault
from evenkeel.services.scheduler.serving.job_task import JobTask
from evenkeel.services.scheduler.serving.news import Newsroom
from evenkeel.services.scheduler.serving.parts import JobReports, Parts
from evenkeel.services.scheduler.serving.processes import Processes, Spawn
from evenkeel.services.scheduler.serving.renewals import Renewals

_log = structlog.get_logger(__name__)


class ServedJob:
    """One unfinished job. Belongs to the event loop's thread.

    Errors of all ``take_`` methods and of :meth:`finish`: :class:`JobFailedError` when what was given made the job
    fail, :class:`JobAwayError` when it begins anew just now. What they lead to is durable on return.
    """

    def __init__(
        self, job_id: str, parts: Parts, reports: Callable[[str], JobReports], finish: Callable[[str], Awaitable[None]]
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            job_id: The job.
            parts: What all jobs share.
            reports: Makes, for its token, what is told of the job's broken streams and probes.
            finish: Finishes a job by its id.
        """
        self._job_id = job_id
        self._parts = parts
        self._new_reports = reports
        # One for all that begins anew: it numbers what it tells.
        self._reports: JobReports | None = None
        self._finish = finish
        self._news = Newsroom()
        self._renewals = Renewals(job_id, parts.metrics.failures)
        self._renewing: asyncio.Task[None] | None = None
        self._has_failed = False
        self._task: JobTask | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it takes anything in; False while it begins anew."""
        return self._task is not None and self._renewing is None

    @property
    def state(self) -> JobState | None:
        """Its state; None while that cannot be told."""
        try:
            return None if self._task is None else self._task.job.known.state
        except Exception:  # whoever works with this state next says what is wrong with it
            return None

    def view(self) -> JobView | None:
        """The job as it is, or was before it failed; None while that cannot be told."""
        try:
            return None if self._task is None else self._task.view()
        except Exception as error:
            if self.is_ready:
                self._failed("view", "view", error)
            return None

    def watch(self) -> AsyncIterator[JobNews]:
        """The job as it is, then its news, also after it began anew.

        Raises:
            JobAwayError: It cannot be told how it is.
        """
        view = self.view()
        if view is None:
            raise JobAwayError(self._job_id)
        return self._news.subscribe(view)

    def begin(self, job: JobRecord) -> None:
        """Begin with a job that has just been registered."""
        try:
            self._task = self._task_of(registered_job(job, _salt()), 0, job.job_token)
            self._task.put(events.Began())
        except Exception as error:
            self._failed("begin", "beginning as registered", error)

    async def resume(self, stored: StoredJob | None = None) -> None:
        """Begin with what the history says, as at a start of the service; ``stored`` where it was read already."""
        try:
            await self._resume(stored)
        except JobAwayError:  # told already
            pass
        except Exception as error:
            if not is_fault(error):
                raise
            self._failed("begin", "going on from the history", error)

    async def take_verdicts(self, verdicts: Sequence[VerdictRecord]) -> None:
        """Verdicts of this job, in order; a plan that they need is on its way on return."""
        await self._take(events.VerdictsTaken(tuple(verdicts)), "verdict")

    async def take_profile(self, profile: JobProfile) -> None:
        """The job's newest profile."""
        await self._take(events.ProfileTaken(profile), "profile")

    async def take_end(self) -> None:
        """The detector has seen all of its processes end."""
        await self._take(events.AllEnded(), "end")

    def take_suspicion(self, suspicion: Suspicion) -> None:
        """Probe the suspect in the background."""
        self._ready().probe(suspicion)

    async def take_ranks(self, ranks: Sequence[RankRecord]) -> None:
        """Processes of ranks registered.

        Raises:
            UnknownRankError: The job's layout has no such rank.
            FinishedJobError: The job has ended, perhaps while this waited for its turn.
        """
        await self._take(events.RanksRegistered(tuple(ranks)), "registration")

    async def take_exits(self, exits: Sequence[RankExitRecord]) -> None:
        """Processes of ranks have ended, as who started them saw.

        Raises:
            UnknownRankError: The job's layout has no such rank.
        """
        await self._take(events.ExitsReported(tuple(exits)), "registration")

    async def finish(self, failure: str = "") -> None:
        """The job has ended. Of one that begins anew just now, what is open in its history ends with it."""
        if self.is_ready:
            await self._take(events.Finish(failure), "finish")
            await self._retire()
            return
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._retire()
        try:
            await self._end_on_record(failure)
        except Exception:
            self._has_failed = True
            self._renewing = self._parts.spawn(self._renew())
            raise
        self._news.close()

    def _ready(self) -> JobTask:
        if self._task is None or not self.is_ready:
            raise JobAwayError(self._job_id)
        return self._task

    async def _take(self, event: events.Event, where: str) -> None:
        await self._ready().take(event, where)

    def _failed(self, where: str, doing: str, error: Exception) -> None:
        self._renewals.failed(where, doing, error)
        self._has_failed = True
        if self._renewing is None:
            self._renewing = self._parts.spawn(self._renew())

    async def _renew(self) -> None:
        while self._has_failed:
            await self._retire()
            await asyncio.sleep(self._renewals.pause_seconds())
            self._has_failed = False
            await self.resume()
        self._renewing = None
        _log.info("the job began anew", job_id=self._job_id)

    async def _retire(self) -> None:
        if self._task is not None:
            await self._task.retire()

    async def _end_on_record(self, failure: str) -> None:
        parts, at = self._parts, self._parts.now()
        try:
            stored = await parts.store.load_job(self._job_id)
            if stored is None:
                return
            moment = steps.Moment(at=at, states={}, rules=parts)
            await parts.store.save_patiently(on(restored_job(stored, _salt()), events.Finish(failure), moment).save)
        except Exception as error:
            if not is_fault(error):
                raise
            _log.warning("what is open in its history stays so", job_id=self._job_id, exc_info=error)
            detail = "the job finished while the scheduler had failed on it"
            end = JobStateRecord(job_id=self._job_id, state=JobState.FINISHED, at=at, detail=detail)
            await parts.store.save_patiently([end])

    async def _resume(self, stored: StoredJob | None) -> None:
        stored = stored or await self._parts.store.load_job(self._job_id)
        if stored is None:
            return
        version = 0 if stored.state is None else stored.state.version
        self._task = task = self._task_of(restored_job(stored, _salt()), version, stored.record.job_token)
        await task.take(events.Began(again=True), "begin")

    def _task_of(self, job: Job, version: int, token: str) -> JobTask:
        parts = self._parts
        self._reports = self._reports or self._new_reports(token)

        def connect(broken: StreamBroken, spawn: Spawn) -> Processes:
            return Processes(self._job_id, token, broken, spawn, parts.rank_tls, leadership=parts.leadership)

        return JobTask(job, version, connect, parts, self._news, self._reports, failed=self._failed, end=self._end)

    def _end(self) -> None:
        # A task of the service's: finishing the job ends the job's own.
        async def finish() -> None:
            await self._finish(self._job_id)

        self._parts.spawn(finish())


def _salt() -> str:
    return uuid.uuid4().hex[:8]
