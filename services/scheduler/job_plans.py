"""The plans of one job: made from its state, taken to the ranks, measured against what becomes of them.

Everything that changes the state holds the lock. A plan on its way runs beside and takes the lock only to report.
Effects are durable before they are acted upon: a plan before its decision, the decision before the first Commit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanMode, PlanState
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.planning.solution import NoPlanError
from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.adapters.fleet_port import JobView
from evenkeel.services.scheduler.advising import advise
from evenkeel.services.scheduler.airborne import Airborne
from evenkeel.services.scheduler.departures import Answer, dispatch_of, new_flight, solved, weigh
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError, NothingLeftError, RecoveryNeededError
from evenkeel.services.scheduler.dispatch.protocol import (
    CannotReshapeError,
    Decision,
    RankAwayError,
    RankRefusedError,
    StaleBallotError,
)
from evenkeel.services.scheduler.dispatch.two_phase import Flight
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanInFlight, PlanNeed
from evenkeel.services.scheduler.domain.replacements import promoted
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason
from evenkeel.services.scheduler.domain.transitions import on_applied
from evenkeel.services.scheduler.faults import JobAwayError
from evenkeel.services.scheduler.news import Newsroom
from evenkeel.services.scheduler.parts import Parts
from evenkeel.services.scheduler.plan_log import PlanLog
from evenkeel.services.scheduler.plan_records import note_of, plan_record
from evenkeel.services.scheduler.plans.decision import Choice
from evenkeel.services.scheduler.processes import Processes
from evenkeel.services.scheduler.state_log import StateLog
from evenkeel.services.scheduler.views import job_view

_log = structlog.get_logger(__name__)

_LONGEST_SECOND_LOOK = 600.0
_MOST_NAMED = 8


class JobPlans:
    """A job's state, and what it asks for. Belongs to the event loop's thread.

    Attributes:
        job: The state.
        lock: Held by whoever changes it.
        log: Where plans are recorded.
        states: Where the job's states are.
        unmeasured: The plan in force, if its effect is not measured yet.
        must_recover: Some rank waits for a recovery, though nobody is gone.
        retired: Others go on with the job: nothing may be changed here any more.
    """

    def __init__(self, job: JobKnowledge, processes: Processes, parts: Parts, news: Newsroom) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            job: Its state.
            processes: Its ranks' processes.
            parts: What all jobs share.
            news: Its watchers.
        """
        self.job = job
        self.lock = asyncio.Lock()
        self.log = PlanLog(parts.store, parts.metrics, news, parts.clock)
        self.states = StateLog(job.state, parts, news, self.view)
        self.unmeasured: PlanRecord | None = None
        self.must_recover = False
        self.retired = False
        self._processes = processes
        self._parts = parts
        self._news = news
        self._airborne: Airborne | None = None
        self._retries = Backoff(first_seconds=0.1, longest_seconds=5.0)
        self._second_looks = Backoff(first_seconds=parts.second_look_seconds, longest_seconds=_LONGEST_SECOND_LOOK)
        self._second_look: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._has_waited = False
        self._profile_wait: asyncio.Task[None] | None = None
        self._goes_without_profile = False

    def view(self, job: JobKnowledge) -> JobView:
        """A job as it is, its ranks as they last said themselves."""
        return job_view(job, self._processes.board.states)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The lock, for whoever comes from outside.

        Raises:
            JobAwayError: Others go on with the job.
        """
        async with self.lock:
            if self.retired:
                raise JobAwayError(self.job.job_id)
            yield

    async def react(self, likely: Answer | None = None) -> None:
        """Start what the state asks for; replace a flight that counts on somebody who is gone.

        Args:
            likely: The planner's answer for the state as it is, on its way already.
        """
        need = PlanNeed.RECOVER if self.must_recover and self.job.can_reshape else self.job.need
        flight = self.job.flight
        if need is PlanNeed.RECOVER:
            # Whole replicas wait for nobody: they are told at the end of a step how the work is shared out now.
            mode = PlanMode.BOUNDARY if self.job.home.whole else PlanMode.RECOVER
            intact = self._airborne is not None and self._airborne.is_intact(self.job.ranks)
            if flight is None or flight.mode is not mode or not intact:
                await self.ground("somebody it counts on is gone")
                await self._plan(mode, likely)
        elif need is not PlanNeed.NONE and self._awaits_profile():
            _log.info("the job's profile is not known yet: no plan yet", job_id=self.job.job_id)
        elif need is PlanNeed.BOUNDARY:
            await self._plan(PlanMode.BOUNDARY, likely)
        elif need is PlanNeed.ADVICE:
            self.job = replace(self.job, changed=False)
            await advise(self.job, likely, self._parts, self.log)
        if self._airborne is None:
            await self.states.announce(self.job)
        else:
            self._news.publish(self.view(self.job))  # a flight records the state together with its plan

    async def take_first_profile(self) -> None:
        """Do what has waited for the job's profile."""
        if self._profile_wait is not None:
            self._profile_wait.cancel()
            self._profile_wait = None
            await self.react()

    def _awaits_profile(self) -> bool:
        """Whether to wait, and not for ever: a detector that is away has no profile to tell."""
        if self.job.workload is not None or self._goes_without_profile:
            return False
        if self._profile_wait is None:
            self._profile_wait = self._parts.spawn(self._wait_for_profile())
        return True

    async def _wait_for_profile(self) -> None:
        await asyncio.sleep(self._parts.profile_seconds)
        self._goes_without_profile = True
        await self._look_again(0.0)

    async def _plan(self, mode: PlanMode, likely: Answer | None) -> None:
        job, parts = self.job, self._parts
        cannot_wait = mode is PlanMode.RECOVER or bool(job.lost)
        if job.unregistered and not (cannot_wait and self._has_waited):
            ranks = list(job.unregistered[:_MOST_NAMED])
            _log.info("some ranks have not registered their controllers: no plan yet", job_id=job.job_id, ranks=ranks)
            if cannot_wait and self._waiting is None:
                self._waiting = parts.spawn(self._wait_for_registrations())
            return
        self.job = job = replace(job, changed=False)
        alive = [job.ranks[rank] for rank in job.layout.ranks if job.ranks[rank].alive]
        if any(self._processes.board.phase(one.rank, one.incarnation) is RankPhase.FINISHED for one in alive):
            _log.info("the job is ending: no plan", job_id=job.job_id)
            return
        solution, solve_seconds = await (likely or solved(job, parts))
        if isinstance(solution, NoPlanError):
            _log.error("no plan", job_id=job.job_id, problem=str(solution))
            self.job = self._stuck(StuckReason.NO_LAYOUT, str(solution))
            await self._take_newcomers()
            return
        parts.metrics.solve_seconds.observe(solve_seconds)
        decision = weigh(job, solution, mode, parts)
        parts.metrics.decisions.labels(decision.choice.value).inc()
        _log.info("weighed a plan", job_id=job.job_id, choice=decision.choice.value, reason=decision.reason)
        if decision.choice is Choice.KEEP:
            at_home = job.layout.replicas == job.home.replicas
            if self._second_look is None and not (at_home and job.situation(parts.transition).all_is_well):
                self._second_look = parts.spawn(self._weigh_again(self._second_looks.next_seconds()))
            return
        flight = new_flight(job, solution, mode, parts)
        record = plan_record(
            job, flight, solution, why=decision.reason, solve_seconds=solve_seconds, at=self._parts.now()
        )
        self.take_off(flight, record, None)

    def take_off(self, flight: PlanInFlight, record: PlanRecord, decision: Decision | None) -> None:
        """Send a plan on its way to the ranks.

        Args:
            flight: The plan as the state has it.
            record: The plan as the history has it.
            decision: What was decided on it before a restart; None = it is new.
        """
        job = self.job
        calls = self._processes.calls(info for info in job.ranks.values() if info.alive)
        dispatch = dispatch_of(job, flight, calls, self._processes.board, self._parts)
        self.job = replace(job, flight=flight, top_epoch=max(job.top_epoch, flight.epoch), stuck=None)
        self.must_recover = False
        airborne = self._airborne = Airborne(
            flight,
            record,
            dispatch,
            self.log,
            participants=[job.ranks[rank] for rank in dispatch.calls],
            proposal=self._parts.spawn(self.log.proposed(record, self.states.changes(self.job)))
            if decision is None
            else None,
            decision=decision,
        )
        airborne.task = self._parts.spawn(self._fly(airborne))

    async def _fly(self, airborne: Airborne) -> None:
        """Take a plan to the ranks and report how it went."""

        async def decided() -> None:
            async with self.lock:
                flight = airborne.flight
                self.job = replace(self.job, layouts={**self.job.layouts, flight.epoch: flight.layout})

        try:
            first = await airborne.fly(decided)
        except (NoAgreementError, RankAwayError, RankRefusedError) as error:
            await self._failed(airborne, error)
            if isinstance(error, NothingLeftError):
                await self._go_on_when_possible(airborne.dispatch)
        else:
            await self._applied(airborne, first)

    async def _applied(self, airborne: Airborne, first_iteration: int) -> None:
        async with self.lock:
            if self._airborne is not airborne:
                return
            flight, record = airborne.flight, airborne.record
            outcome = on_applied(
                self.job,
                epoch=flight.epoch,
                layout=flight.layout,
                plan_id=flight.plan_id,
                first_iteration=first_iteration,
                at=self._parts.now(),
            )
            overtaken = self.log.overtaken_ends(f"overtaken by {flight.plan_id}")
            await self.log.entered(
                record,
                PlanState.APPLIED,
                first_iteration=first_iteration,
                more=[*outcome.records, *overtaken, *self.states.changes(outcome.job)],
            )
            self.job, self._airborne, self.unmeasured, self.log.overtaken = outcome.job, None, record, []
            self._retries.reset()
            self._second_looks.reset()
            await self.react()

    async def _failed(self, airborne: Airborne, error: Exception) -> None:
        """Nobody changed: note it, learn the ranks' epochs, and look again a little later."""
        async with self.lock:
            if self._airborne is not airborne:
                return
            self._airborne, flight = None, airborne.flight
            _log.warning("plan failed", job_id=self.job.job_id, plan_id=flight.plan_id, error=str(error))
            promised = error.promised.epoch if isinstance(error, StaleBallotError) else 0
            known = (state.newest_epoch for state in self._processes.board.states.values())
            highest = max([flight.epoch, promised, *known])
            self.job = replace(self.job, flight=None, changed=True, top_epoch=max(self.job.top_epoch, highest))
            if isinstance(error, CannotReshapeError):
                self.job = self.job.with_rank(replace(self.job.ranks[error.rank], can_reshape=False))
            # A boundary that some ranks wait for and others refuse never comes: only a recovery gets past it.
            recovers = flight.mode is PlanMode.RECOVER
            self.must_recover = airborne.is_decided or recovers or isinstance(error, RecoveryNeededError)
            if isinstance(error, NoAgreementError) and recovers:
                nothing = isinstance(error, NothingLeftError)
                self.job = self._stuck(StuckReason.NOTHING_HELD if nothing else StuckReason.NO_AGREEMENT, str(error))
            notes = [note_of(flight, str(error), at=self._parts.now())] if flight.incident_id and self.job.stuck else []
            await airborne.take_back(str(error), notes)
            await self.states.announce(self.job)
            if self.job.stuck:
                await self._take_newcomers()
            if not self.job.stuck:
                # Beyond the promise it is answered: nothing to wait for.
                self._parts.spawn(self._look_again(0.0 if promised else self._retries.next_seconds()))

    def _stuck(self, reason: StuckReason, detail: str) -> JobKnowledge:
        """The job, which cannot go on; for the same reason as before, it has been so since then."""
        known = self.job.stuck
        if known is not None and (known.reason, known.detail) == (reason, detail):
            return self.job
        return replace(self.job, stuck=Stuck(reason=reason, detail=detail, since=self._parts.now()))

    async def _go_on_when_possible(self, dispatch: Flight) -> None:
        """Some slice is nowhere: parked ranks wait, and so does this, until a copy or a checkpoint turns up."""
        stuck = self.job.stuck
        if stuck and await dispatch.until_possible(lambda: self.job.stuck == stuck and not self.job.finished):
            async with self.lock:
                if self.job.stuck == stuck and self.job.flight is None and not self.job.finished:
                    self.job = replace(self.job, stuck=None, changed=True)
                    await self.react()

    async def _take_newcomers(self) -> None:
        """Nothing can be made of those that are left: whoever waits to replace one of the dead is counted in."""
        vacant = self.job.vacant
        self.job = promoted(self.job)
        if self.job.vacant != vacant:
            await self.react()

    async def _look_again(self, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        async with self.lock:
            if self.job.flight is None and not self.job.finished:
                await self.react()

    async def _wait_for_registrations(self) -> None:
        """Somebody is gone before all have registered: whoever takes very long is planned without, and joins later."""
        await asyncio.sleep(self._parts.registration_seconds)
        self._has_waited = True
        await self._look_again(0.0)

    async def _weigh_again(self, after_seconds: float) -> None:
        """A layout was kept though somebody is ill: what that costs and what a plan brings may be known better now."""
        await asyncio.sleep(after_seconds)
        async with self.lock:
            self._second_look = None
            if self.job.flight is None and not self.job.finished and not self.job.stuck:
                self.job = replace(self.job, changed=True)
                await self.react()

    async def ground(self, why: str) -> None:
        """Stop the flight, if there is one."""
        airborne, self._airborne = self._airborne, None
        self.job = replace(self.job, flight=None)
        if airborne is not None:
            await airborne.ground(why)
