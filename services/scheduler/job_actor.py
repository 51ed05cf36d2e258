"""One job at work: events one at a time into its state.

Everything that changes the state holds the lock, so events of a job are taken one after the other, in order of arrival,
and each is durable before it is acted upon. Errors of all methods that change it: :class:`JobAwayError` once another
actor goes on with the job. The plans that the state asks for are :mod:`evenkeel.services.scheduler.job_plans`'.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import structlog

from evenkeel.history.errors import FinishedJobError
from evenkeel.history.records import RankExitRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import JobState, PlanMode, PlanState
from evenkeel.services.scheduler.adapters.fleet_port import JobNews, JobView
from evenkeel.services.scheduler.adapters.store import Change
from evenkeel.services.scheduler.departures import flight_again, solved
from evenkeel.services.scheduler.dispatch.protocol import RankCalls
from evenkeel.services.scheduler.domain.exits import not_started, on_exits
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed
from evenkeel.services.scheduler.domain.losses import due_accounts, with_standstill
from evenkeel.services.scheduler.domain.profiles import JobProfile, Measured, on_profile
from evenkeel.services.scheduler.domain.replacements import in_their_places, on_rank_registered
from evenkeel.services.scheduler.domain.restart import Resumed
from evenkeel.services.scheduler.domain.transitions import on_verdict
from evenkeel.services.scheduler.job_plans import JobPlans
from evenkeel.services.scheduler.news import Newsroom
from evenkeel.services.scheduler.parts import Parts
from evenkeel.services.scheduler.plan_records import decision_from_document
from evenkeel.services.scheduler.processes import Processes

_log = structlog.get_logger(__name__)


class JobActor:
    """One job. Belongs to the event loop's thread."""

    def __init__(self, job: JobKnowledge, processes: Processes, parts: Parts, news: Newsroom) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            job: Its state.
            processes: Its ranks' processes.
            parts: What all jobs share; tasks are the job's own.
            news: Its watchers.
        """
        self._processes = processes
        self._parts = parts
        self._news = news
        self._plans = JobPlans(job, processes, parts, self._news)
        alive = [info for info in job.ranks.values() if info.alive]
        for info in (*alive, *(newcomer.info for newcomer in job.newcomers.values())):
            processes.add(info)

    @property
    def job(self) -> JobKnowledge:
        """The state."""
        return self._plans.job

    async def take_verdicts(self, verdicts: Sequence[VerdictRecord]) -> None:
        """Verdicts of this job, in order; durable on return, and a plan that they need is on its way."""
        async with self._plans.turn():
            await self._take(self.job, [], verdicts)

    async def _take(self, job: JobKnowledge, before: Sequence[Change], verdicts: Sequence[VerdictRecord]) -> None:
        """Verdicts about a job that has just become what it is, with what the history learns of that."""
        changes, evict = list(before), set[tuple[int, int]]()
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
        gone = _counted(self.job) - _counted(job)
        self._plans.job = job
        for verdict in fresh:
            self._parts.metrics.verdicts.labels(str(verdict.kind)).inc()
            self._news.publish(verdict)
        for key in sorted(gone):
            self._processes.drop(key, evict_in_epoch=job.top_epoch if key in evict else None)
        await self._plans.react(likely)

    async def take_profile(self, profile: JobProfile) -> None:
        """The job's newest profile."""
        async with self._plans.turn():
            try:
                job, measured = on_profile(self.job, profile)
                job, accounts = due_accounts(job, self._parts.now())
            except (ArithmeticError, ValueError):  # figures that only this job can have; the next ones may be better
                _log.exception("a profile that makes no sense", job_id=profile.job_id, iteration=profile.iteration)
                return
            self._plans.job = job
            if accounts:
                await self._parts.store.save_patiently(accounts)
            if measured is not None:
                await self._note_effect(measured)
            if self.job.workload is not None:
                await self._plans.take_first_profile()

    async def _note_effect(self, measured: Measured) -> None:
        """Of the plan in force: what it did, beside what was predicted."""
        record, self._plans.unmeasured = self._plans.unmeasured, None
        if record is None or record.plan_id != measured.plan.plan_id:
            return
        levers = [action.lever for action in record.actions]
        hindsight = self.job.hindsight.after(record.predicted_seconds, measured.seconds, levers)
        self._plans.job = replace(self.job, hindsight=hindsight)
        await self._plans.log.entered(record, PlanState.MEASURED, measured_seconds=measured.seconds)

    async def take_ranks(self, records: Sequence[RankRecord]) -> None:
        """Processes of ranks registered; durable on return.

        Raises:
            FinishedJobError: The job has ended, perhaps while this waited for its turn.
        """
        async with self._plans.turn():
            if self.job.finished:
                raise FinishedJobError(self.job.job_id)
            job, over = reduce(on_rank_registered, records, self.job), list[Change]()
            job, over[:] = in_their_places(job, self._parts.now())
            await self._parts.store.save([*records, *over])
            self._plans.job = job
            registered = {(record.rank, record.incarnation) for record in records}
            for info in (*self.job.ranks.values(), *(n.info for n in self.job.newcomers.values())):
                if (info.rank, info.incarnation) in registered:
                    self._processes.add(info)
            await self._plans.react()

    async def take_exits(self, exits: Sequence[RankExitRecord]) -> None:
        """Processes of ranks have ended, as who started them saw; durable on return."""
        async with self._plans.turn():
            job, records, verdict = on_exits(self.job, exits, self._parts.now())
            await self._take(job, [*exits, *records], [] if verdict is None else [verdict])

    async def give_up_waiting(self, after_seconds: float) -> None:
        """The time for registering is over: stuck, if none of the job's processes has."""
        async with self._plans.turn():
            self._plans.job = not_started(self.job, self._parts.now(), deadline_seconds=after_seconds)
            await self._plans.states.announce(self.job)

    def publish(self) -> None:
        """Tell watchers how the job is."""
        self._news.publish(self.view())

    async def take_end(self, rank: int, incarnation: int) -> None:
        """A process said that it was done; in a job that cannot be reshaped that is all that tells of its end."""
        async with self._plans.turn():
            info = self.job.ranks[rank]
            if not self.job.can_reshape and not self.job.finished and info.incarnation == incarnation:
                self._plans.job = self.job.with_rank(replace(info, ended=True))
                self._news.publish(self.view())

    async def recover(self, epoch: int) -> None:
        """Ranks parked in ``epoch`` wait for a recovery though nobody is gone: make one, if none is under way."""
        async with self._plans.turn():
            flight = self.job.flight
            recovers = flight is not None and flight.mode is PlanMode.RECOVER
            if self.job.epoch != epoch or recovers or self.job.finished or self.job.stuck:
                return
            self._plans.must_recover = True
            await self._plans.react()

    def calls_to(self, processes: Collection[tuple[int, int]]) -> Mapping[int, RankCalls]:
        """Clients of those of the processes (rank, incarnation) that are alive and registered, by rank."""
        alive = [info for info in self.job.ranks.values() if info.alive and (info.rank, info.incarnation) in processes]
        return self._processes.calls(alive)

    def controllers(self) -> tuple[RankCalls, ...]:
        """Clients of all processes that are not known to be gone."""
        return self._processes.clients

    async def finish(self, failure: str = "") -> None:
        """The job has ended, perhaps because it failed; its plans, streams and watchers end too."""
        async with self._plans.turn():
            if self.job.finished:
                return
            await self._plans.ground("the job finished")
            job = with_standstill(self.job, self._parts.now()) if self.job.need is PlanNeed.RECOVER else self.job
            changes: list[Change] = [one.resolved(self._parts.now(), "the job finished") for one in job.incidents]
            changes += self._plans.log.overtaken_ends("the job finished before every rank was seen to run it")
            detail = f"failed: {failure}" if failure else "finished"
            changes.append(self._plans.states.record(self.job.job_id, JobState.FINISHED, detail))
            # Nothing leads back from here: its plan is on the ground already.
            await self._parts.store.save_patiently(changes)
            self._plans.job = replace(self.job, finished=True, incidents=(), flight=None)
            self._processes.close()
            self._news.publish(self.view())
            self._news.close()

    async def resume(self, resumed: Resumed) -> None:
        """Go on after a restart: finish a decided plan, and look at what the state asks for."""
        async with self._plans.turn():
            self._plans.job = not_started(self.job, self._parts.now())
            self._plans.log.overtaken = [status.plan.plan_id for status in resumed.superseded]
            self._plans.unmeasured, self._plans.states.said = resumed.unmeasured, resumed.state
            for info in resumed.hanging:
                self._processes.evict(info, self.job.top_epoch)
            decided, self._plans.must_recover = resumed.decided, resumed.must_recover
            if decided is not None and decided.decision is not None:
                plan = decided.plan
                _log.info("finishing a decided plan", job_id=self.job.job_id, plan_id=plan.plan_id, epoch=plan.epoch)
                self._plans.take_off(
                    flight_again(plan), plan, decision_from_document(decided.decision, self.job.layouts)
                )
            await self._plans.react()

    async def retire(self, end_tasks: Callable[[], Awaitable[None]]) -> None:
        """Change nothing any more: another actor goes on with the job, from what is in the history on return.

        Args:
            end_tasks: Ends the job's tasks.
        """
        async with self._plans.lock:
            self._plans.retired = True
            await end_tasks()
            self._processes.close()
            await self._plans.log.settled()

    def watch(self) -> AsyncIterator[JobNews]:
        """The job as it is, then its news, until it is finished or the watcher falls behind."""
        return self._news.subscribe(self.view())

    def view(self) -> JobView:
        """The job as it is."""
        return self._plans.view(self.job)


def _counted(job: JobKnowledge) -> frozenset[tuple[int, int]]:
    """Processes (rank, incarnation) that live, as far as is known, or wait to take their ranks over."""
    infos = (*job.ranks.values(), *(newcomer.info for newcomer in job.newcomers.values()))
    return frozenset((info.rank, info.incarnation) for info in infos if info.alive)
