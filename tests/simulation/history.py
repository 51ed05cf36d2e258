"""The history in memory: durable when a save returns, slow, and kept when the scheduler dies."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from evenkeel.history.records import (
    IncidentEventRecord,
    IncidentRecord,
    IncidentState,
    JobRecord,
    JobStatus,
    PlanDropRecord,
    PlanEventRecord,
    PlanRecord,
    PlanStatus,
    RankRecord,
    RestartRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanState
from evenkeel.services.scheduler.domain.changes import JobStateRecord

ENDS = frozenset({PlanState.ABORTED, PlanState.APPLIED})


class MemoryHistory:
    """What :class:`~evenkeel.services.scheduler.adapters.store.Store` does for one job, without a database.

    Attributes:
        plans: Newest state of every plan, by id.
        broken: What must not be in a history.
        delay_seconds: Longest that a save takes.
    """

    def __init__(self, job: JobRecord, random: Random) -> None:
        self._job, self._random = job, random
        self.delay_seconds = 0.01
        self.broken: list[str] = []
        self.plans: dict[str, PlanStatus] = {}
        self._state = JobState.RUNNING
        self._ranks: dict[tuple[int, int], RankRecord] = {}
        self._verdicts: dict[str, VerdictRecord] = {}
        self._incidents: dict[str, IncidentState] = {}
        self._running_since: Any = None

    async def save(self, changes: Sequence[Any]) -> tuple[bool, ...]:
        await asyncio.sleep(self._random.uniform(0.0, self.delay_seconds))
        done = tuple(self._take(change) for change in changes)
        await asyncio.sleep(self._random.uniform(0.0, self.delay_seconds))  # the answer is on its way
        return done

    save_patiently = save

    def _take(self, change: Any) -> bool:
        match change:
            case RankRecord():
                return self._ranks.setdefault((change.rank, change.incarnation), change) is change
            case VerdictRecord():
                return self._verdicts.setdefault(change.verdict_id, change) is change
            case JobStateRecord():
                self._state = change.state
            case IncidentRecord():
                names = ("incident_id", "job_id", "verdict_id", "kind", "culprits", "first_iteration", "throughput")
                self._incidents[change.incident_id] = IncidentState(
                    **{name: getattr(change, name) for name in names},
                    opened_at=change.opened_at,
                    lost_seconds=0.0,
                    resolved_at=None,
                    plan_ids=(),
                )
            case IncidentEventRecord():
                known = self._incidents.get(change.incident_id)
                if change.kind is IncidentEventKind.RESOLVED:
                    self._incidents.pop(change.incident_id, None)
                elif known is not None and change.lost_seconds is not None:
                    self._incidents[change.incident_id] = replace(known, lost_seconds=change.lost_seconds)
            case PlanRecord():
                status = PlanStatus(
                    plan=change,
                    state=PlanState.PROPOSED,
                    at=change.proposed_at,
                    first_iteration=None,
                    measured_seconds=None,
                    decision=None,
                    detail="",
                )
                return self.plans.setdefault(change.plan_id, status) is status
            case PlanDropRecord():
                if self.plans[change.plan_id].state is not PlanState.PROPOSED:
                    return False
                self._enter(change.plan_id, PlanState.ABORTED, change.at)
            case PlanEventRecord():
                self._enter(change.plan_id, change.state, change.at, change.decision, change.first_iteration)
        return True

    def _enter(self, plan_id: str, state: PlanState, at: Any, decision: Any = None, first: int | None = None) -> None:
        known = self.plans[plan_id]
        if known.state in ENDS and state in ENDS:
            self.broken.append(f"told_once: plan {plan_id} was {known.state} and became {state}")
        if state is PlanState.COMMITTED and any(
            other.decision and other.plan.epoch == known.plan.epoch and other is not known
            for other in self.plans.values()
        ):
            self.broken.append(f"one_decision: two plans for epoch {known.plan.epoch}")
        if state is PlanState.APPLIED:
            self._running_since = at
        decision = decision or known.decision
        self.plans[plan_id] = replace(known, state=state, at=at, decision=decision, first_iteration=first)

    def is_decided(self, plan_id: str) -> bool:
        return self.plans[plan_id].decision is not None

    async def load_job(self, job_id: str) -> RestartRecord:
        newest: dict[int, RankRecord] = {}
        for (rank, _), record in sorted(self._ranks.items()):
            newest[rank] = record
        decided = [one for one in self.plans.values() if one.decision is not None]
        job = JobStatus(
            **{name: getattr(self._job, name) for name in ("job_id", "name", "model", "registered_at", "tenant")},
            layout=self._job.layout,
            num_devices=len(self._job.layout.ranks),
            epoch=0,
            state=self._state,
            ranks=tuple(newest.values()),
        )
        return RestartRecord(
            job=job,
            job_token="token",
            layouts={0: self._job.layout, **{one.plan.epoch: one.plan.layout for one in decided}},
            verdicts=tuple(self._verdicts.values()),
            incidents=tuple(self._incidents.values()),
            plans=tuple(
                one
                for one in self.plans.values()
                if one.state in (PlanState.PROPOSED, PlanState.COMMITTED, PlanState.APPLIED)
            ),
            running_since=self._running_since,
            earlier=tuple(record for record in self._ranks.values() if record is not newest[record.rank]),
        )
