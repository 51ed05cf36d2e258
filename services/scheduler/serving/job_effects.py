"""Does what the steps of one job ask for: the planner, timers, calls to ranks, and the plan on its way to them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from evenkeel.layouts.rank_state import RankState
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.search.solver import solve_at_once
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError
from evenkeel.services.scheduler.dispatch.protocol import (
    Decision,
    RankAwayError,
    RankCalls,
    RankRefusedError,
)
from evenkeel.services.scheduler.dispatch.question import question_of
from evenkeel.services.scheduler.dispatch.two_phase import Flight
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import PlanInFlight
from evenkeel.services.scheduler.domain.replacements import hanging
from evenkeel.services.scheduler.domain.suspicion import Suspicion
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.job import Job, TimerKey
from evenkeel.services.scheduler.serving.parts import JobReports, Parts
from evenkeel.services.scheduler.serving.probing import Prober
from evenkeel.services.scheduler.serving.processes import Processes, Spawn

_log = structlog.get_logger(__name__)


class JobEffects:
    """Those of one job. Belongs to the event loop's thread; nothing here changes the job, all of it ends as events."""

    def __init__(
        self,
        processes: Processes,
        parts: Parts,
        reports: JobReports,
        *,
        spawn: Spawn,
        put: Callable[[events.Event], None],
        take: Callable[[events.Event], Awaitable[None]],
        end: Callable[[], None],
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            processes: The job's processes.
            parts: What all jobs share.
            reports: Told of broken streams and probes.
            spawn: Starts tasks of the job's own.
            put: Takes an event in.
            take: Likewise; what it leads to is durable on return.
            end: Finishes the job.
        """
        self._processes, self._parts, self._reports = processes, parts, reports
        self._spawn, self._put, self._take, self._end = spawn, put, take, end
        self._prober = Prober(reports.probed, parts.metrics)
        self._timers: dict[TimerKey, asyncio.Task[None]] = {}
        self._reporting: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._flying: tuple[str, asyncio.Task[None]] | None = None
        self._known: JobKnowledge | None = None

    def do(self, known: JobKnowledge, effect: steps.Effect) -> None:
        """Do it, or begin to; never waits.

        Args:
            known: The job as it is now.
            effect: What.
        """
        self._known, metrics = known, self._parts.metrics
        match effect:
            case steps.SetTimer(key, seconds):
                if (earlier := self._timers.get(key)) is not None:
                    earlier.cancel()
                self._timers[key] = self._spawn(self._fire(key, seconds))
            case steps.Ask():
                self._spawn(self._ask(effect))
            case steps.Evict(info, epoch):
                self._processes.evict(info, epoch, partial(self._hangs, info.rank, info.incarnation))
            case steps.Report(process, detail):
                # A report may wait long for Kafka: one at a time of each process.
                last = self._reporting.get(process)
                if last is None or last.done():
                    self._reporting[process] = self._spawn(self._reports.stream_broken(*process, detail))
            case steps.Probe(suspicion):
                self._probe(known, suspicion)
            case steps.Weighed(choice, solve_seconds, reason):
                metrics.solve_seconds.observe(solve_seconds)
                metrics.decisions.labels(choice).inc()
                _log.info("weighed a plan", job_id=known.job_id, choice=choice, reason=reason)
            case steps.Note(text, fields):
                _log.info(text, job_id=known.job_id, **fields)
            case steps.EndJob():
                _log.info("all processes of the job have ended: it is finished", job_id=known.job_id)
                self._end()

    def solve(self, question: steps.Solve) -> None:
        """Ask the planner."""
        self._spawn(self._solve(question))

    def fly(self, job: Job) -> None:
        """Have the job's plan on its way to the ranks, and no other."""
        self._known = known = job.known
        plan = known.flight
        if self._flying is not None:
            plan_id, task = self._flying
            if plan is not None and plan.record.plan_id == plan_id:
                return
            task.cancel()
            self._flying = None
        if plan is not None:
            calls = self._processes.calls(info for info in known.ranks.values() if info.alive)
            flight = Flight(
                question=question_of(known, plan.record, frozenset(calls), self._parts.leadership.term),
                calls=calls,
                board=self._processes.board,
                spawn=self._spawn,
                times=self._parts.times,
            )
            self._flying = plan.record.plan_id, self._spawn(self._fly(plan, flight))

    def _probe(self, known: JobKnowledge, suspicion: Suspicion) -> None:
        infos = [info for info in known.ranks.values() if info.process in suspicion.processes]
        calls = self._processes.calls(info for info in infos if info.alive)

        async def answer() -> None:
            await self._prober.answer(suspicion, calls)

        self._spawn(answer())

    def _hangs(self, rank: int, incarnation: int) -> bool:
        """Whether a process holds its rank's place, as far as is known now, and hangs."""
        accused = [] if self._known is None else hanging(self._known)
        return (rank, incarnation) in {one.process for one in accused}

    async def _fire(self, key: TimerKey, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._put(events.TimerFired(key))

    async def _solve(self, question: steps.Solve) -> None:
        started, known, is_makeshift = time.perf_counter(), question.about, False
        transition = self._parts.transition
        answer: Solution | NoPlanError
        try:
            situation = await asyncio.to_thread(known.situation, transition)
            answer = await self._parts.planner.solve(situation, is_urgent=question.is_urgent)
        except NoPlanError as error:
            answer = error
        except Exception as error:  # the boundary: whatever becomes of the planner, a death has a plan
            _log.exception("the planner failed: the plan is made without it", job_id=known.job_id)
            self._parts.metrics.planner_failures.inc()
            answer, is_makeshift = await asyncio.to_thread(_solved_at_once, known, transition, error), True
        self._put(events.Solved(question.number, answer, time.perf_counter() - started, is_makeshift))

    async def _ask(self, ask: steps.Ask) -> None:
        clients = {
            process: client
            for process, client in self._processes.clients.items()
            if ask.processes is None or process in ask.processes
        }
        answers = await asyncio.gather(*(_status(client, ask.seconds) for client in clients.values()))
        self._put(events.Answered(ask.why, dict(zip(clients, answers, strict=True))))

    async def _fly(self, plan: PlanInFlight, flight: Flight) -> None:
        plan_id = plan.record.plan_id

        async def decided(decision: Decision) -> None:
            await self._take(events.Agreed(plan_id, decision))

        try:
            going = flight.run(decided) if plan.decision is None else flight.finish(plan.decision)
            self._put(events.Applied(plan_id, await going))
        except (NoAgreementError, RankAwayError, RankRefusedError) as error:
            self._put(events.Failed(plan_id, error))


def _solved_at_once(known: JobKnowledge, transition: TransitionCosts, problem: Exception) -> Solution | NoPlanError:
    try:
        return solve_at_once(known.situation(transition))
    except NoPlanError as error:
        return error
    except Exception as error:  # the boundary: what one job's state does to the levers must not stop the others
        _log.exception("no plan without the planner either")
        return NoPlanError(f"the planner failed on this job ({problem}), and so did what stands in for it ({error!r})")


async def _status(calls: RankCalls, timeout_seconds: float) -> RankState | events.Silence:
    try:
        return await calls.status(timeout_seconds)
    except RankAwayError:
        return events.Silence.AWAY
    except RankRefusedError:
        return events.Silence.REFUSED
