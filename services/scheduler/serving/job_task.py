"""Carries out one job's steps: takes its events one at a time, saves what they change, then does what follows.

One queue and one writer. Clients of ranks, the plan on its way and the job's watchers follow its state.
"""

import asyncio
from collections.abc import Callable

import structlog

from evenkeel.history.errors import FinishedJobError, UnknownRankError
from evenkeel.history.records import VerdictRecord
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.adapters.fleet_port import JobNews, JobView
from evenkeel.services.scheduler.adapters.ranks.watch import StreamBroken
from evenkeel.services.scheduler.adapters.store.job_document import saved_state
from evenkeel.services.scheduler.domain.standing import Standing
from evenkeel.services.scheduler.domain.suspicion import Suspicion
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.job import Job, counted
from evenkeel.services.scheduler.jobs.machine import on
from evenkeel.services.scheduler.serving.faults import JobAwayError, JobFailedError, is_fault
from evenkeel.services.scheduler.serving.job_effects import JobEffects
from evenkeel.services.scheduler.serving.job_tasks import JobTasks
from evenkeel.services.scheduler.serving.news import Newsroom, job_view
from evenkeel.services.scheduler.serving.parts import JobReports, Parts
from evenkeel.services.scheduler.serving.processes import Processes, Spawn

_log = structlog.get_logger(__name__)

_PAUSE_SECONDS = 0.2
"""A job's ranks change together: what they say meanwhile is told its watchers as one."""

_OF_TASKS = "task"

Connect = Callable[[StreamBroken, Spawn], Processes]
"""Makes what a job's processes are reached by."""

_Queued = tuple[events.Event, str, "asyncio.Future[None] | None"]


class JobTask:
    """One job at work, until it is retired. Belongs to the event loop's thread.

    Attributes:
        job: The job as it is.
        processes: Its ranks' processes.
    """

    def __init__(
        self,
        job: Job,
        version: int,
        connect: Connect,
        parts: Parts,
        news: Newsroom,
        reports: JobReports,
        *,
        failed: Callable[[str, str, Exception], None],
        end: Callable[[], None],
    ) -> None:
        """Starts to take events in; does no I/O.

        Args:
            job: The job.
            version: Of it in the history; 0 = as it was registered.
            connect: How its processes are reached.
            parts: What all jobs share.
            news: Its watchers.
            reports: Told of its broken streams and probes.
            failed: Told once where and at what its work failed; nothing is taken in any more then.
            end: Finishes it, as the fleet API would.
        """
        self.job = self._saved = job
        self._version = version
        self._parts = parts
        self._news = news
        self._report_failure = failed
        self._is_over = False
        self._queue: asyncio.Queue[_Queued] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self._tasks = JobTasks(parts.spawn, self._failed)
        self.processes = connect(self._stream_broken, self._tasks.spawn)
        self._effects = JobEffects(
            self.processes, parts, reports, spawn=self._tasks.spawn, put=self.put, take=self.take, end=end
        )
        self._telling: asyncio.Task[None] | None = None
        self._told: Standing | None = None
        self.processes.board.listeners.append(self._said)
        self.processes.follow(counted(job.known).values())
        self._tasks.spawn(self._work())

    @property
    def is_over(self) -> bool:
        """Whether it takes nothing in any more."""
        return self._is_over

    def view(self) -> JobView:
        """The job as it is, its ranks as they last said themselves."""
        return job_view(self.job.known, self.processes.board.states)

    def put(self, event: events.Event) -> None:
        """Something has happened to the job."""
        if not self._is_over:
            self._queue.put_nowait((event, _OF_TASKS, None))

    async def take(self, event: events.Event, where: str = _OF_TASKS) -> None:
        """Something has happened to the job; what it leads to is durable and under way on return.

        Args:
            event: What.
            where: One of few words for the metrics, should the job fail at it.

        Raises:
            JobFailedError: It made the job fail, which was told.
            JobAwayError: The job's work was retired or had failed before it was taken.
            FinishedJobError, UnknownRankError: See :func:`evenkeel.services.scheduler.jobs.machine.on`.
            OperationalError, InterfaceError, DatabaseAwayError: Ranks register, and the database is away.
        """
        if self._is_over:
            raise self._away()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((event, where, answer))
        await answer

    def probe(self, suspicion: Suspicion) -> None:
        """Answer a suspicion of the detector's, in the background."""
        self._effects.probe(self.job.known, suspicion)

    async def retire(self) -> None:
        """End: on return nothing of it is under way, and what it has taken in is in the history."""
        self._is_over = True
        async with self._turn:
            await self._tasks.end()
        self.processes.close()
        while not self._queue.empty():
            *_, answer = self._queue.get_nowait()
            _settle(answer, self._away())

    def _away(self) -> Exception:
        known = self.job.known
        return FinishedJobError(known.job_id) if known.finished else JobAwayError(known.job_id)

    def _failed(self, doing: str, error: Exception, where: str = _OF_TASKS) -> None:
        if not self._is_over:
            self._is_over = True
            self._report_failure(where, doing, error)

    async def _work(self) -> None:
        while True:
            event, where, answer = await self._queue.get()
            try:
                async with self._turn:
                    if self._is_over:
                        raise self._away()
                    await self._step(event)
            except asyncio.CancelledError:
                _settle(answer, JobAwayError(self.job.known.job_id))
                raise
            except (FinishedJobError, UnknownRankError, JobAwayError) as error:
                _settle(answer, error)
            except Exception as error:
                if is_fault(error):
                    self._failed(type(event).__name__, error, where)
                    _settle(answer, JobFailedError(self.job.known.job_id))
                elif answer is None:
                    raise
                else:
                    _settle(answer, error)
            else:
                _settle(answer, None)

    async def _step(self, event: events.Event) -> None:
        before, parts = self.job, self._parts
        step = on(before, event, steps.Moment(at=parts.now(), states=self.processes.board.states, rules=parts))
        for question in step.meanwhile:
            self._effects.solve(question)
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
            self.processes.follow(counted(job.known).values())
        for effect in step.then:
            match effect:
                case steps.Tell(news):
                    self._tell(news)
                case _:
                    self._effects.do(job.known, effect)
        self._effects.fly(job)
        if job.known is not before.known:
            self._news.publish(self.view())
        if job.known.finished:
            self._effects.close()
            self.processes.close()
            self._news.close()

    def _tell(self, news: JobNews) -> None:
        if isinstance(news, VerdictRecord):
            self._parts.metrics.verdicts.labels(str(news.kind)).inc()
        elif not isinstance(news, JobView):
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

    # ---- what ranks say

    def _stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
        self.put(events.StreamBroken((rank, incarnation), detail))

    def _said(self, state: RankState) -> None:
        if state.phase in (RankPhase.PARKED, RankPhase.FINISHED):
            self.put(events.RankSaid(state))
        if not self._is_over and (self._telling is None or self._telling.done()):
            self._telling = self._tasks.spawn(self._tell_standing())

    async def _tell_standing(self) -> None:
        """Watchers see what a job's ranks do, also when nothing else of it has changed."""
        await asyncio.sleep(_PAUSE_SECONDS)
        view = self.view()
        if view.standing != self._told and not self.job.known.finished:
            self._told = view.standing
            self._news.publish(view)


def _settle(answer: "asyncio.Future[None] | None", error: Exception | None) -> None:
    if answer is None or answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
