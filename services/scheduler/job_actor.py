"""One job at work: events one at a time into its state, plans out of it.

Everything that changes the state holds the lock, so events of a job are taken one after the other, in order of arrival.
A flight (a plan on its way to the ranks) runs beside and takes the lock only to report. Effects are durable before they
are acted upon: a verdict before its plan, a plan before its decision, the decision before the first Commit.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from history.records import PlanEventRecord, PlanRecord, RankRecord, VerdictRecord
from history.vocabulary import JobState, PlanMode, PlanState
from layouts.rank_state import RankPhase
from services.common.backoff import Backoff
from services.scheduler.adapters.fleet_port import JobNews, JobView
from services.scheduler.adapters.store import Change
from services.scheduler.advising import advise
from services.scheduler.departures import Answer, dispatch_of, flight_again, new_flight, solved, weigh
from services.scheduler.dispatch.agreement import NoAgreementError, NothingLeftError
from services.scheduler.dispatch.protocol import (
    CannotReshapeError,
    Decision,
    RankAwayError,
    RankCalls,
    RankRefusedError,
)
from services.scheduler.dispatch.two_phase import Flight
from services.scheduler.domain.job_state import JobKnowledge, PlanInFlight, PlanNeed
from services.scheduler.domain.losses import due_accounts, with_standstill
from services.scheduler.domain.profiles import JobProfile, on_profile
from services.scheduler.domain.replacements import in_their_places, on_rank_registered, promoted
from services.scheduler.domain.restart import Resumed
from services.scheduler.domain.transitions import on_applied, on_verdict
from services.scheduler.news import Newsroom
from services.scheduler.parts import Parts
from services.scheduler.plan_log import PlanLog
from services.scheduler.plan_records import decision_from_document, decision_to_document, note_of, plan_record
from services.scheduler.planning.decision import Choice
from services.scheduler.planning.solution import NoPlanError
from services.scheduler.processes import Processes
from services.scheduler.state_log import StateLog
from services.scheduler.views import job_view

_log = structlog.get_logger(__name__)

_LONGEST_SECOND_LOOK = 600.0


class JobActor:
    """One job. Belongs to the event loop's thread."""

    def __init__(self, job: JobKnowledge, processes: Processes, parts: Parts) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            job: Its state.
            processes: Its ranks' processes.
            parts: What all jobs share.
        """
        self.job = job
        self._processes = processes
        self._parts = parts
        self._lock = asyncio.Lock()
        self._news = Newsroom()
        self._log = PlanLog(parts.store, parts.metrics, self._news, parts.clock)
        self._states = StateLog(job.state, parts, self._news)
        self._flying: asyncio.Task[None] | None = None
        self._record: PlanRecord | None = None
        self._proposal: asyncio.Task[None] | None = None
        self._unmeasured: PlanRecord | None = None
        self._participants: dict[int, int] = {}
        self._decided = self._must_recover = False
        self._retries = Backoff(first_seconds=0.1, longest_seconds=5.0)
        self._second_looks = Backoff(first_seconds=parts.second_look_seconds, longest_seconds=_LONGEST_SECOND_LOOK)
        self._second_look: asyncio.Task[None] | None = None
        alive = [info for info in job.ranks.values() if info.alive]
        for info in (*alive, *(newcomer.info for newcomer in job.newcomers.values())):
            processes.add(info)

    # ---- events

    async def take_verdicts(self, verdicts: Sequence[VerdictRecord]) -> None:
        """Verdicts of this job, in order; durable on return, and a plan that they need is on its way."""
        async with self._lock:
            job, changes, evict = self.job, list[Change](), set[tuple[int, int]]()
            for verdict in verdicts:
                outcome = on_verdict(job, verdict)
                job = outcome.job
                changes += [verdict, *outcome.records]
                evict.update(outcome.evict)
            # The question is known before the answer may be acted upon: solve while the history writes.
            likely = None
            if job.need is not PlanNeed.NONE:
                likely = asyncio.create_task(solved(job, self._parts))
            await self._parts.store.save_patiently(changes)
            fresh = [verdict for verdict in verdicts if verdict.verdict_id not in self.job.seen]
            before, self.job = self.job, job
            for verdict in fresh:
                self._parts.metrics.verdicts.labels(str(verdict.kind)).inc()
                self._news.publish(verdict)
            for key in [(rank, info.incarnation) for rank, info in before.ranks.items() if info.alive]:
                if not job.ranks[key[0]].alive:
                    self._processes.drop(key, evict_in_epoch=job.top_epoch if key in evict else None)
            await self._react(likely)

    async def take_profile(self, profile: JobProfile) -> None:
        """The job's newest profile."""
        async with self._lock:
            self.job, measured = on_profile(self.job, profile)
            self.job, accounts = due_accounts(self.job, self._now())
            if accounts:
                await self._parts.store.save_patiently(accounts)
            if measured is None:
                return
            record, self._unmeasured = self._unmeasured, None
            if record is not None and record.plan_id == measured.plan.plan_id:
                levers = [action.lever for action in record.actions]
                hindsight = self.job.hindsight.after(record.predicted_seconds, measured.seconds, levers)
                self.job = replace(self.job, hindsight=hindsight)
                await self._log.entered(record, PlanState.MEASURED, measured_seconds=measured.seconds)

    async def take_rank(self, record: RankRecord) -> None:
        """A process of a rank registered; durable on return."""
        async with self._lock:
            job, over = in_their_places(on_rank_registered(self.job, record), self._now())
            await self._parts.store.save([record, *over])
            self.job = job
            for info in (self.job.ranks[record.rank], *(n.info for n in self.job.newcomers.values())):
                if info.rank == record.rank and info.incarnation == record.incarnation:
                    self._processes.add(info)
            await self._react()

    async def take_end(self, rank: int, incarnation: int) -> None:
        """A process said that it was done; in a job that cannot be reshaped that is all that tells of its end."""
        async with self._lock:
            info = self.job.ranks[rank]
            if not self.job.can_reshape and not self.job.finished and info.incarnation == incarnation:
                self.job = self.job.with_rank(replace(info, ended=True))
                self._news.publish(self.view())

    async def recover(self, epoch: int) -> None:
        """Ranks parked in ``epoch`` wait for a recovery though nobody is gone: make one, if none is under way."""
        async with self._lock:
            flight = self.job.flight
            recovers = flight is not None and flight.mode is PlanMode.RECOVER
            if self.job.epoch != epoch or recovers or self.job.finished or self.job.stuck:
                return
            self._must_recover = True
            await self._react()

    def calls_to(self, processes: Collection[tuple[int, int]]) -> Mapping[int, RankCalls]:
        """Clients of those of the processes (rank, incarnation) that are alive and registered, by rank."""
        alive = [info for info in self.job.ranks.values() if info.alive and (info.rank, info.incarnation) in processes]
        return self._processes.calls(alive)

    def controllers(self) -> tuple[RankCalls, ...]:
        """Clients of all processes that are not known to be gone."""
        return self._processes.clients

    async def finish(self) -> None:
        """The job has ended; its plans, streams and watchers end too."""
        async with self._lock:
            if self.job.finished:
                return
            await self._ground("the job finished")
            job = with_standstill(self.job, self._now()) if self.job.need is PlanNeed.RECOVER else self.job
            changes: list[Change] = [one.resolved(self._now(), "the job finished") for one in job.incidents]
            changes += self._log.overtaken_ends("the job finished before every rank was seen to run it")
            changes.append(self._states.record(self.job.job_id, JobState.FINISHED, "finished"))
            # Nothing leads back from here: its plan is on the ground already.
            await self._parts.store.save_patiently(changes)
            self.job = replace(self.job, finished=True, incidents=(), flight=None)
            self._processes.close()
            self._news.publish(self.view())
            self._news.close()

    async def resume(self, resumed: Resumed) -> None:
        """Go on after a restart: finish a decided plan, drop undecided ones, and look at what the state asks for."""
        async with self._lock:
            detail = "the scheduler restarted before it was decided"
            dropped: list[Change] = [
                PlanEventRecord(plan_id=status.plan.plan_id, state=PlanState.ABORTED, at=self._now(), detail=detail)
                for status in resumed.undecided
            ]
            self._log.overtaken = [status.plan.plan_id for status in resumed.superseded]
            if dropped:
                await self._parts.store.save_patiently(dropped)
            self._unmeasured, self._states.said = resumed.unmeasured, resumed.state
            for info in resumed.hanging:
                self._processes.evict(info, self.job.top_epoch)
            decided, self._must_recover = resumed.decided, resumed.must_recover
            if decided is not None and decided.decision is not None:
                plan = decided.plan
                _log.info("finishing a decided plan", job_id=self.job.job_id, plan_id=plan.plan_id, epoch=plan.epoch)
                self._take_off(flight_again(plan), plan, decision_from_document(decided.decision, self.job.layouts))
            await self._react()

    def watch(self) -> AsyncIterator[JobNews]:
        """The job as it is, then its news, until it is finished or the watcher falls behind."""
        return self._news.subscribe(self.view())

    def view(self) -> JobView:
        """The job as it is."""
        return job_view(self.job)

    # ---- plans

    async def _react(self, likely: Answer | None = None) -> None:
        """Start what the state asks for; replace a flight that counts on somebody who is gone.

        Args:
            likely: The planner's answer for the state as it is, on its way already.
        """
        need = PlanNeed.RECOVER if self._must_recover and self.job.can_reshape else self.job.need
        flight = self.job.flight
        if need is PlanNeed.RECOVER:
            intact = all(
                self.job.ranks[rank].alive and self.job.ranks[rank].incarnation == incarnation
                for rank, incarnation in self._participants.items()
            )
            if flight is None or flight.mode is PlanMode.BOUNDARY or not intact:
                await self._ground("somebody it counts on is gone")
                await self._plan(PlanMode.RECOVER, likely)
        elif need is PlanNeed.BOUNDARY:
            await self._plan(PlanMode.BOUNDARY, likely)
        elif need is PlanNeed.ADVICE:
            self.job = replace(self.job, changed=False)
            await advise(self.job, likely, self._parts, self._log)
        if self._flying is None:
            await self._states.announce(self.job)
        else:
            self._news.publish(self.view())  # a flight records the state together with its plan

    async def _plan(self, mode: PlanMode, likely: Answer | None) -> None:
        job, parts = self.job, self._parts
        if mode is PlanMode.BOUNDARY and not set(job.layout.ranks) <= set(job.usable):
            _log.info("some rank has not registered its controller: no plan yet", job_id=job.job_id)
            return
        self.job = job = replace(job, changed=False)
        alive = [job.ranks[rank] for rank in job.layout.ranks if job.ranks[rank].alive]
        if any(self._processes.board.phase(one.rank, one.incarnation) is RankPhase.FINISHED for one in alive):
            _log.info("the job is ending: no plan", job_id=job.job_id)
            return
        solution, solve_seconds = await (likely or solved(job, parts))
        if isinstance(solution, NoPlanError):
            _log.error("no plan", job_id=job.job_id, problem=str(solution))
            self.job = replace(job, stuck=str(solution))
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
        record = plan_record(job, flight, solution, why=decision.reason, solve_seconds=solve_seconds, at=self._now())
        self._take_off(flight, record, None)

    def _take_off(self, flight: PlanInFlight, record: PlanRecord, decision: Decision | None) -> None:
        job = self.job
        concerned = {*job.layout.ranks, *flight.layout.ranks, *(decision.from_layout.ranks if decision else ())}
        calls = self._processes.calls(job.ranks[rank] for rank in sorted(concerned) if job.ranks[rank].alive)
        self.job = replace(job, flight=flight, top_epoch=max(job.top_epoch, flight.epoch), stuck="")
        self._record, self._decided, self._must_recover = record, decision is not None, False
        self._participants = {rank: job.ranks[rank].incarnation for rank in calls}
        dispatch = dispatch_of(job, flight, calls, self._processes.board, self._parts)
        self._proposal = None
        if decision is None:  # recorded beside the Prepares that are on their way; the decision waits for both
            self._proposal = self._parts.spawn(self._log.proposed(record, self._states.changes(self.job)))
        self._flying = self._parts.spawn(self._fly(flight, record, dispatch, decision))

    async def _fly(self, flight: PlanInFlight, record: PlanRecord, dispatch: Flight, decision: Decision | None) -> None:
        """Take a plan to the ranks and report how it went."""

        async def decided(chosen: Decision) -> None:
            assert self._proposal is not None
            await asyncio.shield(self._proposal)
            self._decided = True
            document = decision_to_document(chosen, flight.mode)
            await self._log.entered(record, PlanState.COMMITTED, decision=document)
            async with self._lock:
                self.job = replace(self.job, layouts={**self.job.layouts, flight.epoch: flight.layout})

        try:
            first = await (dispatch.run(decided) if decision is None else dispatch.finish(decision))
        except (NoAgreementError, RankAwayError, RankRefusedError) as error:
            if self._proposal is not None:
                await asyncio.shield(self._proposal)
            await self._failed(flight, record, error)
            if isinstance(error, NothingLeftError):
                await self._go_on_when_possible(dispatch, str(error))
        else:
            await self._applied(flight, record, first)

    async def _applied(self, flight: PlanInFlight, record: PlanRecord, first_iteration: int) -> None:
        async with self._lock:
            if self.job.flight is not flight:
                return
            outcome = on_applied(
                self.job,
                epoch=flight.epoch,
                layout=flight.layout,
                plan_id=flight.plan_id,
                first_iteration=first_iteration,
                at=self._now(),
            )
            overtaken = self._log.overtaken_ends(f"overtaken by {flight.plan_id}")
            await self._log.entered(
                record,
                PlanState.APPLIED,
                first_iteration=first_iteration,
                more=[*outcome.records, *overtaken, *self._states.changes(outcome.job)],
            )
            self.job, self._flying, self._unmeasured, self._log.overtaken = outcome.job, None, record, []
            self._retries.reset()
            self._second_looks.reset()
            await self._react()

    async def _failed(self, flight: PlanInFlight, record: PlanRecord, error: Exception) -> None:
        """Nobody changed: note it, learn the ranks' epochs, and look again a little later."""
        async with self._lock:
            if self.job.flight is not flight:
                return
            _log.warning("plan failed", job_id=self.job.job_id, plan_id=flight.plan_id, error=str(error))
            highest = max([flight.epoch, *(state.newest_epoch for state in self._processes.board.states.values())])
            self.job = replace(self.job, flight=None, changed=True, top_epoch=max(self.job.top_epoch, highest))
            if isinstance(error, CannotReshapeError):
                self.job = self.job.with_rank(replace(self.job.ranks[error.rank], can_reshape=False))
            decided, self._decided = self._decided, False
            self._flying, self._participants = None, {}
            # A boundary that some ranks wait for and others refuse never comes: only a recovery gets past it.
            self._must_recover = decided
            if isinstance(error, NoAgreementError) and flight.mode is PlanMode.RECOVER:
                self.job = replace(self.job, stuck=str(error))
            if decided:
                self._log.overtaken.append(record.plan_id)
            else:
                notes = [note_of(flight, str(error), at=self._now())] if flight.incident_id and self.job.stuck else []
                await self._log.entered(record, PlanState.ABORTED, detail=str(error), more=notes)
            await self._states.announce(self.job)
            if self.job.stuck:
                await self._take_newcomers()
            if not self.job.stuck:
                self._parts.spawn(self._look_again(self._retries.next_seconds()))

    async def _go_on_when_possible(self, dispatch: Flight, stuck: str) -> None:
        """Some slice is nowhere: parked ranks wait, and so does this, until a copy or a checkpoint turns up."""
        if await dispatch.until_possible(lambda: self.job.stuck == stuck and not self.job.finished):
            async with self._lock:
                if self.job.stuck == stuck and self.job.flight is None and not self.job.finished:
                    self.job = replace(self.job, stuck="", changed=True)
                    await self._react()

    async def _take_newcomers(self) -> None:
        """Nothing can be made of those that are left: whoever waits to replace one of the dead is counted in."""
        vacant = self.job.vacant
        self.job = promoted(self.job)
        if self.job.vacant != vacant:
            await self._react()

    async def _look_again(self, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        async with self._lock:
            if self.job.flight is None and not self.job.finished:
                await self._react()

    async def _weigh_again(self, after_seconds: float) -> None:
        """A layout was kept though somebody is ill: what that costs and what a plan brings may be known better now."""
        await asyncio.sleep(after_seconds)
        async with self._lock:
            self._second_look = None
            if self.job.flight is None and not self.job.finished and not self.job.stuck:
                self.job = replace(self.job, changed=True)
                await self._react()

    async def _ground(self, why: str) -> None:
        """Stop the flight, if there is one. An undecided plan is aborted; a decided one stands until overtaken."""
        flying, record, flight, decided = self._flying, self._record, self.job.flight, self._decided
        self._flying, self._participants, self._decided = None, {}, False
        self.job = replace(self.job, flight=None)
        if flying is None or record is None or flight is None:
            return
        flying.cancel()
        await asyncio.gather(flying, return_exceptions=True)
        if decided:
            self._log.overtaken.append(record.plan_id)
            return
        assert self._proposal is not None
        await self._proposal  # written any later, it would say of the job what is over
        await self._log.entered(record, PlanState.ABORTED, detail=why)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._parts.clock(), UTC)
