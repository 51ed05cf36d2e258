"""One job as the coordinator serves it: begun from its history, guarded, and begun anew where its work failed.

What the work for one job raises is a fault of its state or of our code, and comes again with a restart of the service,
for all jobs. So it ends this job's work only: all that is under way is stopped, and after a pause the job begins as it
would after a restart. Ranks train on meanwhile; decided plans are finished, undecided ones are made anew.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import structlog

from evenkeel.history.errors import FinishedJobError, UnknownRankError
from evenkeel.history.records import JobRecord, RankExitRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.services.scheduler.adapters.fleet_port import JobNews, JobView
from evenkeel.services.scheduler.adapters.store import JobStateRecord
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.loose_ends import loose_ends
from evenkeel.services.scheduler.domain.profiles import JobProfile
from evenkeel.services.scheduler.domain.restart import new_job, resumed_job
from evenkeel.services.scheduler.domain.suspicion import Suspicion
from evenkeel.services.scheduler.endings import Endings
from evenkeel.services.scheduler.eyewitness import Eyewitness
from evenkeel.services.scheduler.faults import JobAwayError, JobFailedError, is_fault
from evenkeel.services.scheduler.job_actor import JobActor
from evenkeel.services.scheduler.job_reports import JobReports
from evenkeel.services.scheduler.job_tasks import JobTasks
from evenkeel.services.scheduler.last_known import last_known
from evenkeel.services.scheduler.news import Newsroom
from evenkeel.services.scheduler.onlookers import Onlookers
from evenkeel.services.scheduler.parts import Parts
from evenkeel.services.scheduler.probing import Prober
from evenkeel.services.scheduler.processes import Processes
from evenkeel.services.scheduler.renewals import Renewals
from evenkeel.services.scheduler.standstill import Standstill
from evenkeel.services.scheduler.starting import Starting

_log = structlog.get_logger(__name__)


class ServedJob:
    """One unfinished job. Belongs to the event loop's thread.

    Errors of all ``take_`` methods and of :meth:`finish`: :class:`JobFailedError` when what was given made the job
    fail, :class:`JobAwayError` when it begins anew just now.
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
        self._tasks = JobTasks(parts.spawn, partial(self._failed, "task"))
        self._actor: JobActor | None = None
        self._endings: Endings | None = None
        self._prober: Prober | None = None
        # What a restart would read again from Kafka's beginning.
        self._profile: JobProfile | None = None
        self._has_ended = False

    @property
    def is_ready(self) -> bool:
        """Whether it takes anything in; False while it begins anew."""
        return self._actor is not None and self._renewing is None

    @property
    def state(self) -> JobState | None:
        """Its state; None while that cannot be told."""
        try:
            return None if self._actor is None else self._actor.job.state
        except Exception:  # whoever works with this state next says what is wrong with it
            return None

    def view(self) -> JobView | None:
        """The job as it is, or was before it failed; None while that cannot be told."""
        try:
            return None if self._actor is None else self._actor.view()
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
            self._actor = self._actor_of(new_job(job), job.job_token)
        except Exception as error:
            self._failed("begin", "beginning as registered", error)

    async def resume(self) -> None:
        """Begin with what the history says, as at a start of the service."""
        try:
            await self._resume()
        except Exception as error:
            if not is_fault(error):
                raise
            self._failed("begin", "going on from the history", error)

    async def take_verdicts(self, verdicts: Sequence[VerdictRecord]) -> None:
        """See :meth:`JobActor.take_verdicts`."""
        with self._guarded("verdict") as actor:
            await actor.take_verdicts(verdicts)

    async def take_profile(self, profile: JobProfile) -> None:
        """See :meth:`JobActor.take_profile`."""
        with self._guarded("profile") as actor:
            self._all_ended(False)
            await actor.take_profile(profile)
            self._profile = profile

    def take_end(self) -> None:
        """The detector has seen all of its processes end."""
        with self._guarded("end"):
            self._all_ended(True)

    def take_suspicion(self, suspicion: Suspicion) -> None:
        """Probe the suspect in the background."""
        with self._guarded("suspicion") as actor:
            assert self._prober is not None, "comes with the actor"
            self._tasks.spawn(self._probe(self._prober, suspicion, actor))

    async def take_ranks(self, ranks: Sequence[RankRecord]) -> None:
        """See :meth:`JobActor.take_ranks`.

        Raises:
            UnknownRankError: The job's layout has no such rank.
            FinishedJobError: The job has ended.
        """
        with self._guarded("registration", answers=(FinishedJobError, UnknownRankError)) as actor:
            self._require(actor, ranks)
            await actor.take_ranks(ranks)

    async def take_exits(self, exits: Sequence[RankExitRecord]) -> None:
        """See :meth:`JobActor.take_exits`.

        Raises:
            UnknownRankError: The job's layout has no such rank.
        """
        with self._guarded("exit", answers=(UnknownRankError,)) as actor:
            self._require(actor, exits)
            await actor.take_exits(exits)

    def _require(self, actor: JobActor, named: Sequence[RankRecord | RankExitRecord]) -> None:
        for each in named:
            if each.rank not in actor.job.ranks:
                raise UnknownRankError(self._job_id, each.rank, actor.job.ranks)

    async def finish(self, failure: str = "") -> None:
        """The job has ended. Of one that begins anew just now, what is open in its history ends with it."""
        if self.is_ready:
            with self._guarded("finish") as actor:
                await actor.finish(failure)
            return
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._retire()
        try:
            await self._end_on_record()
        except Exception:
            self._has_failed = True
            self._renewing = self._parts.spawn(self._renew())
            raise
        self._news.close()

    @contextmanager
    def _guarded(self, where: str, *, answers: tuple[type[Exception], ...] = ()) -> Iterator[JobActor]:
        """The actor, for work whose failure is the job's alone; ``answers`` are what callers are told as it is."""
        if self._actor is None or not self.is_ready:
            raise JobAwayError(self._job_id)
        try:
            yield self._actor
        except Exception as error:
            if isinstance(error, (JobAwayError, *answers)) or not is_fault(error):
                raise
            self._failed(where, where, error)
            raise JobFailedError(self._job_id) from error

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
        if self._actor is not None:
            await self._actor.retire(self._tasks.end)
        await self._tasks.end()

    async def _end_on_record(self) -> None:
        at, store = self._parts.now(), self._parts.store
        detail = "the job finished while the scheduler had failed on it"
        end = JobStateRecord(job_id=self._job_id, state=JobState.FINISHED, at=at, detail=detail)
        try:
            record = await last_known(store, self._job_id, at)
            await store.save_patiently([*(loose_ends(record, at, detail) if record else ()), end])
        except Exception as error:
            if not is_fault(error):
                raise
            _log.warning("what is open in its history stays so", job_id=self._job_id, exc_info=error)
            await store.save_patiently([end])

    async def _resume(self) -> None:
        record = await last_known(self._parts.store, self._job_id, self._parts.now())
        if record is None:
            return
        resumed = resumed_job(record)
        self._actor = actor = self._actor_of(resumed.job, record.job_token)
        await actor.resume(resumed)
        # One at which it fails is not given to it again.
        profile, self._profile = self._profile, None
        if profile is not None:
            await actor.take_profile(profile)
            self._profile = profile
        self._all_ended(self._has_ended)

    def _actor_of(self, job: JobKnowledge, token: str) -> JobActor:
        """A new actor, and all that belongs to it."""
        self._tasks = tasks = JobTasks(self._parts.spawn, partial(self._failed, "task"))
        parts = replace(self._parts, spawn=tasks.spawn)
        self._reports = reports = self._reports or self._new_reports(token)
        witness = Eyewitness(reports.stream_broken, tasks.spawn, clock=parts.clock)
        endings = Endings(lambda: self._finish(self._job_id), parts)
        processes = Processes(
            self._job_id,
            token,
            witness.stream_broken,
            tasks.spawn,
            parts.rank_tls,
            leadership=parts.leadership,
            ended=endings.ended,
        )
        actor = JobActor(job, processes, parts, self._news)
        witness.attend(actor, processes.board)
        Standstill(tasks.spawn).attend(actor, processes.board)
        Onlookers(tasks.spawn).attend(actor, processes.board)
        Starting(parts).attend(actor)
        endings.attend(actor)
        self._endings, self._prober = endings, Prober(reports.probed, parts.metrics)
        return actor

    def _all_ended(self, seen: bool) -> None:
        self._has_ended = seen
        if self._endings is not None:
            self._endings.all_ended(seen)

    @staticmethod
    async def _probe(prober: Prober, suspicion: Suspicion, actor: JobActor) -> None:
        await prober.answer(suspicion, actor.calls_to(suspicion.processes))
