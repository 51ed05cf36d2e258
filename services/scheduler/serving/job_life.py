"""One job at work: carries out its steps, saves what they change, then does what they ask for.

Clients of ranks, the plan on its way and the job's watchers follow its state. It ends with the job, or when something
of it fails; then the job begins another one (:mod:`evenkeel.services.scheduler.serving.served_job`).
"""

import asyncio
import uuid
from collections.abc import Callable
from functools import partial

import structlog

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history.records import JobStateRecord, PlanStatus, StoredJob, VerdictRecord
from evenkeel.history.vocabulary import JobState
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.scheduler.adapters.ranks.client import RankClient
from evenkeel.services.scheduler.adapters.store.job_document import restored_job, saved_state
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError
from evenkeel.services.scheduler.dispatch.flight import Flight
from evenkeel.services.scheduler.dispatch.protocol import Decision, RankAwayError, RankRefusedError
from evenkeel.services.scheduler.domain.parts import PlanInFlight
from evenkeel.services.scheduler.domain.profiles import JobEnded
from evenkeel.services.scheduler.domain.replacements import hanging
from evenkeel.services.scheduler.domain.standing import Standing, standing
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.job import Process, Question, Timer
from evenkeel.services.scheduler.jobs.machine import on
from evenkeel.services.scheduler.serving.faults import is_fault
from evenkeel.services.scheduler.serving.job_tasks import JobTasks
from evenkeel.services.scheduler.serving.letters import Letter, Letters
from evenkeel.services.scheduler.serving.news import JobView, Newsroom
from evenkeel.services.scheduler.serving.parts import Parts
from evenkeel.services.scheduler.serving.probing import Prober
from evenkeel.services.scheduler.serving.processes import Processes
from evenkeel.services.scheduler.serving.solving import solved

_log = structlog.get_logger(__name__)

_PAUSE_SECONDS = 0.2
"""A job's ranks change together: what they say meanwhile is told its watchers as one."""


class JobLife:
    """Belongs to the event loop's thread; one step at a time. Whatever comes of what it does is an event again.

    Attributes:
        job: The job as it is.
        processes: Its ranks' processes.
    """

    def __init__(
        self,
        stored: StoredJob,
        parts: Parts,
        letters: Letters,
        news: Newsroom,
        reports: JobEvents,
        failed: Callable[[Exception], None],
    ) -> None:
        """Follows the job's processes; does no other I/O.

        Args:
            stored: The job as the history has it.
            parts: What all jobs share.
            letters: Of the job; what its tasks and its processes tell goes there.
            news: Its watchers.
            reports: Told of its broken streams and probes.
            failed: Told what one of its tasks raised.

        Raises:
            KeyError, ValueError: See :func:`~evenkeel.services.scheduler.adapters.store.job_document.restored_job`.
        """
        self.job = self._saved = job = restored_job(stored, uuid.uuid4().hex[:8])
        self._version = 0 if stored.state is None else stored.state.version
        self._parts, self._letters, self._news, self._reports = parts, letters, news, reports
        self._tasks = JobTasks(parts.spawn, failed)
        connect = partial(
            RankClient,
            job_id=job.known.job_id,
            job_token=stored.record.job_token,
            leadership=parts.leadership,
            tls=parts.rank_tls,
        )
        self.processes = Processes(connect, self._broken, self._tasks.spawn)
        self._prober = Prober(parts.metrics)
        self._timers: dict[Timer, asyncio.Task[None]] = {}
        self._reporting: dict[Process, asyncio.Task[None]] = {}
        self._flying: tuple[str, asyncio.Task[None]] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._told: Standing | None = None
        self.processes.board.listeners.append(self._said)
        self.processes.follow(job.known.living.values())

    def view(self) -> JobView:
        """The job as it is, its ranks as they last said themselves."""
        return JobView(self.job.known, standing(self.job.known, self.processes.board.states))

    async def step(self, event: events.Event) -> None:
        """Something has happened to the job; what it leads to is durable and under way on return.

        Raises:
            FinishedJobError, UnknownRankError: See :func:`evenkeel.services.scheduler.jobs.machine.on`.
            OperationalError, InterfaceError, DatabaseAwayError: Ranks register, and the database is away.
        """
        before, parts = self.job, self._parts
        step = on(before, event, steps.Moment(at=parts.now(), states=self.processes.board.states, rules=parts))
        for question in step.meanwhile:
            self._tasks.spawn(self._solve(question))
        if step.save or step.keep:
            # Who registers tries again by itself; everything else waits for the history.
            is_patient = not isinstance(event, events.RanksRegistered)
            changes = [*step.save]
            if not step.job.known.finished:
                changes.append(saved_state(step.job, self._saved, self._version + 1))
            await (parts.store.save_patiently if is_patient else parts.store.save)(changes)
            self._saved, self._version = step.job, self._version + 1
        self.job = job = step.job
        if job.known.ranks is not before.known.ranks or job.known.newcomers is not before.known.newcomers:
            self.processes.follow(job.known.living.values())
        for effect in step.then:
            self._do(effect)
        self._fly()
        if job.known is not before.known:
            self._news.publish(self.view())
        if job.known.finished:
            self._news.close()

    async def end(self) -> None:
        """On return nothing of it is under way."""
        await self._tasks.end()
        self.processes.close()

    def _put(self, event: events.Event) -> Letter:
        return self._letters.add(Letter(event))

    # ---- what its steps ask for

    def _do(self, effect: steps.Effect) -> None:
        """Do it, or begin to; never waits."""
        known, spawn, metrics = self.job.known, self._tasks.spawn, self._parts.metrics
        match effect:
            case steps.SetTimer(key, seconds):
                if (earlier := self._timers.get(key)) is not None:
                    earlier.cancel()
                self._timers[key] = spawn(self._fire(key, seconds))
            case steps.Ask():
                spawn(self._ask(effect))
            case steps.Evict(info):
                self.processes.evict(
                    info, lambda: self.job.known.top_epoch, lambda: info.process in hanging(self.job.known)
                )
            case Suspicion():
                spawn(self._probe(effect))
            case VerdictRecord() | PlanStatus():
                self._tell(effect)
            case steps.Weighed(choice, solve_seconds, reason):
                metrics.solve_seconds.observe(solve_seconds)
                metrics.decisions.labels(choice).inc()
                _log.info("weighed a plan", job_id=known.job_id, choice=choice, reason=reason)
            case steps.Note(text, fields):
                _log.info(text, job_id=known.job_id, **fields)

    async def _fire(self, key: Timer, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._put(events.TimerFired(key))

    async def _solve(self, question: Question) -> None:
        self._put(await solved(question, self._parts))

    async def _ask(self, ask: steps.Ask) -> None:
        self._put(events.Answered(ask.why, await self.processes.ask(ask.seconds, ask.processes)))

    async def _probe(self, suspicion: Suspicion) -> None:
        asked = [one for one in self.job.known.ranks.values() if one.alive and one.process in suspicion.processes]
        found = await self._prober.answer(suspicion, self.processes.calls(asked))
        if found is not None:
            await self._reports.probed(suspicion, *found)

    def _tell(self, news: VerdictRecord | PlanStatus) -> None:
        if isinstance(news, VerdictRecord):
            self._parts.metrics.verdicts.labels(str(news.kind)).inc()
        else:
            record, state = news.plan, news.state.value
            seconds = max(0.0, news.at.timestamp() - record.proposed_at.timestamp())
            self._parts.metrics.phase_seconds.labels(state).observe(seconds)
            self._parts.metrics.plans.labels(record.mode.value, state).inc()
            _log.info(
                "plan",
                job_id=record.job_id,
                plan_id=record.plan_id,
                state=state,
                mode=record.mode.value,
                epoch=record.epoch,
                seconds_since_proposed=round(seconds, 4),
                detail=news.detail,
            )
        self._news.publish(news)

    # ---- its plan

    def _fly(self) -> None:
        """Have the job's plan on its way to the ranks, and no other."""
        known, plan = self.job.known, self.job.known.flight
        if self._flying is not None:
            plan_id, task = self._flying
            if plan is not None and plan.record.plan_id == plan_id:
                return
            task.cancel()
            self._flying = None
        if plan is not None:
            flight = Flight(
                known=known,
                plan=plan.record,
                calls=self.processes.calls(info for info in known.ranks.values() if info.alive),
                board=self.processes.board,
                spawn=self._tasks.spawn,
                times=self._parts.times,
            )
            self._flying = plan.record.plan_id, self._tasks.spawn(self._flown(plan, flight))

    async def _flown(self, plan: PlanInFlight, flight: Flight) -> None:
        plan_id = plan.record.plan_id

        async def decided(decision: Decision) -> None:
            await self._put(events.Agreed(plan_id, decision)).done

        try:
            going = flight.run(decided) if plan.decision is None else flight.finish(plan.decision)
            self._put(events.Applied(plan_id, await going))
        except (NoAgreementError, RankAwayError, RankRefusedError) as error:
            self._put(events.Failed(plan_id, error))

    # ---- what ranks say

    def _broken(self, rank: int, incarnation: int, detail: str) -> None:
        process = rank, incarnation
        self._put(events.StreamBroken(process, detail))
        # A report may wait long for Kafka: one at a time of each process.
        last = self._reporting.get(process)
        if last is None or last.done():
            self._reporting[process] = self._tasks.spawn(self._reports.stream_broken(*process, detail))

    def _said(self, state: RankState) -> None:
        if state.phase is RankPhase.PARKED:
            self._put(events.Parked())
        if self._telling is None or self._telling.done():
            self._telling = self._tasks.spawn(self._tell_standing())

    async def _tell_standing(self) -> None:
        """Watchers see what a job's ranks do, also when nothing else of it has changed."""
        await asyncio.sleep(_PAUSE_SECONDS)
        view = self.view()
        if view.standing != self._told and not self.job.known.finished:
            self._told = view.standing
            self._news.publish(view)
            # Loops without a detector say themselves that they are done.
            if not view.known.can_reshape and not view.standing.there and not view.standing.gone:
                self._put(JobEnded(job_id=view.known.job_id))


async def end_on_record(job_id: str, parts: Parts, finish: events.Event) -> None:
    """A job ends that has no life just now: what is open in its history ends with it, where that can be read."""
    at = parts.now()
    try:
        stored = await parts.store.load_job(job_id)
        if stored is not None:
            moment = steps.Moment(at=at, states={}, rules=parts)
            await parts.store.save_patiently(on(restored_job(stored, ""), finish, moment).save)
    except Exception as error:
        if not is_fault(error):
            raise
        _log.warning("what is open in its history stays so", job_id=job_id, exc_info=error)
        detail = "the job finished while the scheduler had failed on it"
        end = JobStateRecord(job_id=job_id, state=JobState.FINISHED, at=at, detail=detail)
        await parts.store.save_patiently([end])
