"""The history in memory: slow, durable before a save returns, and closed to whoever is not in charge any more."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evenkeel.history import reads
from evenkeel.history.errors import StaleStateError
from evenkeel.history.records import (
    IncidentEventRecord,
    IncidentRecord,
    JobRecord,
    JobStateRecord,
    PlanEventRecord,
    PlanRecord,
    PlanStatus,
    RankRecord,
    StoredJob,
    VerdictRecord,
)
from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanState
from evenkeel.services.scheduler.adapters.store.lease import Lease

if TYPE_CHECKING:
    from tests.simulation.world import World

ENDS = frozenset({PlanState.ABORTED, PlanState.APPLIED, PlanState.MEASURED})
"""Outcomes of a plan: nothing follows one, but that what was applied is measured."""


class FencedStore:
    """What one scheduler sees of it; see :class:`~evenkeel.services.scheduler.adapters.store.store.Store`."""

    def __init__(self, world: "World", lease: Lease) -> None:
        self._world, self._history, self._lease = world, world.history, lease

    async def save(self, changes: Sequence[Any]) -> tuple[bool, ...]:
        def arrive() -> tuple[bool, ...]:
            self._world.leases.hold(self._lease.term)
            if self._lease.term < self._world.leases.term:
                self._history.broken.append(f"fenced: term {self._lease.term} writes in {self._world.leases.term}")
            done = tuple([self._history.take(change) for change in changes])
            self._world.happened("saved")
            return done

        return await self._world.request(arrive, self._history.delay_seconds)

    save_patiently = save

    async def read(self, query: Any, *args: Any) -> Any:
        answers = {reads.unfinished_jobs: lambda: list(self._history.jobs), reads.get_job: self._history.jobs.get}
        return await self._world.request(lambda: answers[query](*args))

    async def load_job(self, job_id: str) -> StoredJob | None:
        return (await self.load_jobs([job_id])).get(job_id)

    async def load_jobs(self, job_ids: Sequence[str]) -> Mapping[str, StoredJob]:
        return await self._world.request(lambda: {job_id: self._history.stored(job_id) for job_id in job_ids})


class MemoryHistory:
    """All that is durable.

    Attributes:
        jobs: By id.
        plans: Newest state of every plan, by id.
        broken: What must not be in a history.
        delay_seconds: Longest that a save takes.
    """

    def __init__(self) -> None:
        self.delay_seconds = 0.01
        self.broken: list[str] = []
        self.jobs: dict[str, JobHistory] = {}
        self.plans: dict[str, PlanStatus] = {}

    def is_decided(self, plan_id: str) -> bool:
        return self.plans[plan_id].decision is not None

    def outcomes(self, job_id: str) -> list[tuple[PlanRecord, PlanState]]:
        """The plans of a job, and what became of each."""
        return [(one.plan, one.state) for one in self.plans.values() if one.plan.job_id == job_id]

    def stored(self, job_id: str) -> StoredJob:
        """The job as whoever goes on with it finds it."""
        job = self.jobs[job_id]
        own = {plan_id: one for plan_id, one in self.plans.items() if one.plan.job_id == job_id}
        layouts = {one.plan.epoch: one.plan.layout for one in own.values() if one.decision is not None}
        return StoredJob(
            record=job.record,
            layouts={0: job.record.layout, **layouts},
            seen=frozenset(job.verdicts),
            state=job.working,
            plans={} if job.working is None else {plan_id: own[plan_id] for plan_id in job.working.plan_ids},
        )

    def take(self, change: Any) -> bool:
        match change:
            case JobRecord():
                return self.jobs.setdefault(change.job_id, JobHistory(change)).record == change
            case IncidentEventRecord():
                return all(job.take(change) for job in self.jobs.values())
            case PlanRecord():
                status = PlanStatus(plan=change, state=PlanState.PROPOSED, at=change.proposed_at)
                return self.plans.setdefault(change.plan_id, status) is status
            case PlanEventRecord():
                self._enter(change.plan_id, change.state, change.at, change.decision, change.first_iteration)
            case _:
                return self.jobs[change.job_id].take(change)
        return True

    def _enter(self, plan_id: str, state: PlanState, at: Any, decision: Any = None, first: int | None = None) -> None:
        known = self.plans[plan_id]
        if known.state in ENDS and (known.state, state) != (PlanState.APPLIED, PlanState.MEASURED):
            self.broken.append(f"told_once: plan {plan_id} was {known.state} and became {state}")
        if state is PlanState.COMMITTED and any(
            (other.plan.job_id, other.plan.epoch) == (known.plan.job_id, known.plan.epoch)
            for other in self.plans.values()
            if other.decision and other is not known
        ):
            self.broken.append(f"one_decision: two plans for epoch {known.plan.epoch}")
        decision = decision or known.decision
        self.plans[plan_id] = replace(known, state=state, at=at, decision=decision, first_iteration=first)


class JobHistory:
    """What is durable of one job.

    Attributes:
        record: As it was registered.
        state: As it was last said to be.
        incidents: Those that are open, by id.
        verdicts: Those that were told, by id.
        working: How it stands, in the words of a database.
    """

    def __init__(self, record: JobRecord) -> None:
        self.record, self.state = record, JobState.RUNNING
        self.incidents: dict[str, IncidentRecord] = {}
        self.verdicts: dict[str, VerdictRecord] = {}
        self.working: WorkingStateRecord | None = None
        self._ranks: dict[tuple[int, int], RankRecord] = {}

    def take(self, change: Any) -> bool:
        match change:
            case RankRecord():
                return self._ranks.setdefault((change.rank, change.incarnation), change) is change
            case VerdictRecord():
                return self.verdicts.setdefault(change.verdict_id, change) is change
            case WorkingStateRecord():
                before = self.working
                if (0 if before is None else before.version) != change.version - 1:
                    raise StaleStateError(change.job_id, change.version)
                words = json.loads(json.dumps({"document": change.document, "seats": change.seats}, allow_nan=False))
                new = {int(rank): seat for rank, seat in words["seats"].items()}
                seats = {**(before.seats if before else {}), **new}
                self.working = replace(change, document=words["document"], seats=seats)
            case JobStateRecord():
                self.state = change.state
            case IncidentRecord():
                self.incidents[change.incident_id] = change
            case IncidentEventRecord(kind=IncidentEventKind.RESOLVED):
                self.incidents.pop(change.incident_id, None)
        return True
