"""All jobs of this scheduler: where the fleet API, verdicts and profiles meet. Implements the fleet port.

Not covered: jobs dealt out to several schedulers. One at a time works on a history (``adapters/sole.py``).
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from history.errors import FinishedJobError, JobConflictError, JobIdUsedError, UnknownJobError, UnknownRankError
from history.records import JobRecord, PlanDropRecord, RankRecord, VerdictRecord
from history.vocabulary import JobState, PlanState
from services.common.completion import completed
from services.scheduler.adapters.fleet_port import JobNews, JobView
from services.scheduler.dispatch.protocol import RankCalls
from services.scheduler.domain.job_state import JobKnowledge
from services.scheduler.domain.profiles import JobEnded, JobProfile
from services.scheduler.domain.restart import new_job, resumed_job
from services.scheduler.domain.suspicion import ProbeOutcome, Suspicion
from services.scheduler.endings import Endings
from services.scheduler.eyewitness import Eyewitness
from services.scheduler.job_actor import JobActor
from services.scheduler.parts import Parts
from services.scheduler.probing import Prober
from services.scheduler.processes import Processes
from services.scheduler.standstill import Standstill

_log = structlog.get_logger(__name__)


class JobReports(Protocol):
    """Where that goes which the scheduler itself sees of one job's processes."""

    async def stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
        """A process's stream broke and its controller does not answer any more."""
        ...

    async def probed(self, outcome: ProbeOutcome) -> None:
        """A suspect was probed beside a peer."""
        ...


class Coordinator:
    """Every unfinished job; see :class:`services.scheduler.adapters.fleet_port.FleetPort`."""

    def __init__(self, parts: Parts, reports: Callable[[str], JobReports]) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            parts: What all jobs share.
            reports: Makes, for a job id, what is told of that job's broken streams and probes.
        """
        self._parts = parts
        self._reports = reports
        self._actors: dict[str, JobActor] = {}
        self._probers: dict[str, Prober] = {}
        self._endings: dict[str, Endings] = {}
        for state in JobState:
            if state is not JobState.FINISHED:
                parts.metrics.jobs_in_state.labels(state).set_function(partial(self._num_jobs_in, state))

    def _num_jobs_in(self, state: JobState) -> int:
        return sum(actor.job.state is state for actor in self._actors.values())

    async def load(self) -> int:
        """Take up every unfinished job of the history; call once, before anything else.

        Returns:
            How many there are.

        Raises:
            OperationalError, InterfaceError, OSError, TimeoutError: The database is away.
        """
        store = self._parts.store
        loaded = await store.load_jobs()
        undecided = [plan for record in loaded for plan in record.plans if plan.state is PlanState.PROPOSED]
        if undecided:
            at, why = self._parts.now(), "the scheduler restarted before it was decided"
            dropped = [PlanDropRecord(plan_id=one.plan.plan_id, at=at, detail=why) for one in undecided]
            if not all(await store.save(dropped)):
                # The last that the scheduler before this one wrote was a decision.
                loaded = await store.load_jobs()
        for record in loaded:
            resumed = resumed_job(record)
            await self._add(resumed.job, record.job_token).resume(resumed)
        return len(self._actors)

    async def register_job(self, job: JobRecord) -> JobView:
        """See :class:`services.scheduler.adapters.fleet_port.FleetPort`."""
        try:
            await self._parts.store.save([job])
        except JobConflictError:
            if await self._has_finished(job.job_id):
                raise JobIdUsedError(job.job_id) from None
            raise
        actor = self._actors.get(job.job_id)
        if actor is None:
            if await self._has_finished(job.job_id):
                raise JobIdUsedError(job.job_id)
            actor = self._actors.get(job.job_id) or self._add(new_job(job), job.job_token)
            _log.info("job registered", job_id=job.job_id, ranks=len(job.layout.ranks))
        return actor.view()

    async def register_rank(self, rank: RankRecord) -> None:
        """See :class:`services.scheduler.adapters.fleet_port.FleetPort`."""
        if rank.job_id not in self._actors and await self._has_finished(rank.job_id):
            raise FinishedJobError(rank.job_id)
        actor = self._known(rank.job_id)
        if rank.rank not in actor.job.ranks:
            raise UnknownRankError(rank.job_id, rank.rank, actor.job.ranks)
        await completed(actor.take_rank(rank))

    async def finish_job(self, job_id: str) -> None:
        """See :class:`services.scheduler.adapters.fleet_port.FleetPort`."""
        actor = self._actors.get(job_id)
        if actor is None:
            if await self._parts.store.get_job(job_id) is None:
                raise UnknownJobError(job_id)
            return
        await completed(actor.finish())
        self._actors.pop(job_id, None)
        self._probers.pop(job_id, None)
        self._endings.pop(job_id, None)
        self._parts.metrics.jobs.set(len(self._actors))

    def job(self, job_id: str) -> JobView | None:
        """See :class:`services.scheduler.adapters.fleet_port.FleetPort`."""
        actor = self._actors.get(job_id)
        return None if actor is None else actor.view()

    def watch(self, job_id: str) -> AsyncIterator[JobNews]:
        """See :class:`services.scheduler.adapters.fleet_port.FleetPort`."""
        return self._known(job_id).watch()

    async def take_verdicts(self, job_id: str, verdicts: Sequence[VerdictRecord]) -> None:
        """Verdicts about one job, in order; durable on return. Those about an unknown job are dropped with a word."""
        actor = self._actors.get(job_id)
        if actor is None:
            _log.warning("verdicts about a job that does not run here", job_id=job_id, verdicts=len(verdicts))
            return
        await actor.take_verdicts(verdicts)

    async def take_profile(self, profile: JobProfile) -> None:
        """The newest profile of a job; one of an unknown job is dropped."""
        actor = self._actors.get(profile.job_id)
        if actor is not None:
            self._endings[profile.job_id].all_ended(False)
            try:
                await actor.take_profile(profile)
            except (ArithmeticError, ValueError):  # figures that only this job can have; the next ones may be better
                _log.exception("a profile that makes no sense", job_id=profile.job_id, iteration=profile.iteration)

    def take_end(self, end: JobEnded) -> None:
        """All processes of a job have ended: finished soon if nobody does that. An unknown job's end is dropped."""
        if end.job_id in self._endings:
            self._endings[end.job_id].all_ended(True)

    async def take_suspicion(self, suspicion: Suspicion) -> None:
        """Probe the suspect in the background; a suspicion about an unknown job or process is dropped."""
        actor = self._actors.get(suspicion.job_id)
        if actor is not None:
            calls = actor.calls_to(suspicion.processes)
            self._parts.spawn(self._probe(self._probers[suspicion.job_id], suspicion, calls))

    @staticmethod
    async def _probe(prober: Prober, suspicion: Suspicion, calls: Mapping[int, RankCalls]) -> None:
        await prober.answer(suspicion, calls)

    async def _has_finished(self, job_id: str) -> bool:
        known = await self._parts.store.get_job(job_id)
        return known is not None and known.state is JobState.FINISHED

    def _known(self, job_id: str) -> JobActor:
        actor = self._actors.get(job_id)
        if actor is None:
            raise UnknownJobError(job_id)
        return actor

    def _add(self, job: JobKnowledge, token: str) -> JobActor:
        reports = self._reports(job.job_id)
        witness = Eyewitness(reports.stream_broken, self._parts.spawn, clock=self._parts.clock)
        endings = Endings(lambda: self.finish_job(job.job_id), self._parts)
        processes = Processes(
            job.job_id, token, witness.stream_broken, self._parts.spawn, self._parts.rank_tls, ended=endings.ended
        )
        actor = JobActor(job, processes, self._parts)
        witness.attend(actor, processes.board)
        Standstill(self._parts.spawn).attend(actor, processes.board)
        endings.attend(actor)
        self._actors[job.job_id] = actor
        self._endings[job.job_id] = endings
        self._probers[job.job_id] = Prober(reports.probed, self._parts.metrics)
        self._parts.metrics.jobs.set(len(self._actors))
        return actor
