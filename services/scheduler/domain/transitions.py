"""How a job's state changes: pure functions from (state, event) to (state, what must be recorded and done).

A verdict counts once (by id) and only for the process it names: one about an earlier incarnation changes nothing. Plans
follow from the state (:attr:`JobKnowledge.need`), never from an event: whatever is lost in a crash, a restart that
rebuilds the state asks for the same plan again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from evenkeel.history.records import (
    CulpritRecord,
    IncidentEventRecord,
    IncidentRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import IncidentEventKind, PlanMode, VerdictKind
from evenkeel.services.scheduler.domain.job_state import HEALTHY, JobKnowledge
from evenkeel.services.scheduler.domain.losses import all_accounts, with_standstill
from evenkeel.services.scheduler.domain.parts import AppliedPlan, OpenIncident, RankInfo
from evenkeel.services.scheduler.domain.replacements import GONE, in_their_places, promoted

_SLOW = frozenset((VerdictKind.COMPUTE_SLOW, VerdictKind.COMMUNICATION_SLOW))

IncidentChange = IncidentRecord | IncidentEventRecord


@dataclass(frozen=True, slots=True)
class Transition:
    """What an event leads to: the new state, and what goes into the history after the event itself, in this order."""

    job: JobKnowledge
    records: tuple[IncidentChange, ...] = ()


def on_verdict(job: JobKnowledge, verdict: VerdictRecord) -> Transition:
    """A verdict arrived; the second time it changes nothing."""
    if verdict.verdict_id in job.seen or job.finished:
        return Transition(job)
    job = replace(job, seen=job.seen | {verdict.verdict_id})
    current = tuple(culprit for culprit in verdict.culprits if _is_current(job, culprit, verdict.kind))
    if not current:
        return Transition(job)
    story = _Story(job, verdict)
    if (take := _TAKEN.get(verdict.kind)) is not None:
        take(story, current)
    return Transition(story.job, tuple(story.records))


def _is_current(job: JobKnowledge, culprit: CulpritRecord, kind: str) -> bool:
    """True when a verdict is about the process that its rank has now, or about a waiting or coming one."""
    info = job.ranks.get(culprit.rank)
    if info is None:
        return False
    if kind == VerdictKind.REJOINED:
        return culprit.incarnation > info.incarnation
    newcomer = job.newcomers.get(culprit.rank)
    if newcomer is not None and culprit.incarnation == newcomer.incarnation:
        return kind in GONE
    return culprit.incarnation == info.incarnation or (culprit.incarnation > info.incarnation and kind in GONE)


class _Story:
    """What one verdict leads to, as far as it is told: the job, and the records that go into the history."""

    def __init__(self, job: JobKnowledge, verdict: VerdictRecord) -> None:
        self.job, self.verdict, self.at = job, verdict, verdict.decided_at
        self.records = list[IncidentChange]()
        self.throughput = min(1.0, max(0.01, verdict.throughput))

    def process_of(self, culprit: CulpritRecord) -> RankInfo:
        """A process that only the verdict tells of; what its predecessor's loop can do, its own can."""
        return RankInfo(
            rank=culprit.rank,
            incarnation=culprit.incarnation,
            node=culprit.node,
            device=culprit.device,
            can_reshape=self.job.ranks[culprit.rank].can_reshape,
        )

    def open(self, culprits: Sequence[CulpritRecord]) -> IncidentRecord:
        """An incident opens, and the next plan is for it."""
        verdict = self.verdict
        record = IncidentRecord(
            incident_id=f"incident-{verdict.verdict_id}",  # a replay opens none twice
            job_id=verdict.job_id,
            verdict_id=verdict.verdict_id,
            kind=verdict.kind,
            culprits=tuple(culprits),
            first_iteration=verdict.first_iteration,
            throughput=0.0 if verdict.kind in GONE else verdict.throughput,
            opened_at=self.at,
        )
        incident = OpenIncident(
            incident_id=record.incident_id,
            kind=record.kind,
            culprits=record.culprits,
            throughput=record.throughput,
            opened_at=self.at,
        )
        self.records.insert(0, record)
        self.job = replace(self.job.with_incident(incident), changed=True, cause=record.incident_id)
        return record

    def note(self, incident_id: str, throughput: float, detail: str = "") -> None:
        """The verdict is about an incident that is open."""
        verdict = self.verdict
        note = IncidentEventRecord(
            incident_id=incident_id,
            kind=IncidentEventKind.VERDICT,
            reference=verdict.verdict_id,
            at=self.at,
            throughput=throughput,
            detail=detail or f"{verdict.kind} of rank {', '.join(str(c.rank) for c in verdict.culprits)}",
        )
        self.records.append(note)

    def update(self, incident: OpenIncident) -> None:
        """The verdict says how slow it is now, which the next plan is for."""
        self.note(incident.incident_id, self.throughput)
        newer = replace(incident, throughput=self.throughput)
        self.job = replace(self.job.with_incident(newer), changed=True, cause=newer.incident_id)

    def resolve(self, incidents: Sequence[OpenIncident], detail: str) -> None:
        """Incidents are over."""
        self.records += [incident.resolved(self.at, detail) for incident in incidents]
        self.job = self.job.without(incidents)


def _gone(story: _Story, culprits: Sequence[CulpritRecord]) -> None:
    fresh: list[CulpritRecord] = []
    for culprit in culprits:
        job = story.job
        info, newcomer = job.ranks[culprit.rank], job.newcomers.get(culprit.rank)
        if newcomer is not None and newcomer.incarnation == culprit.incarnation:
            left = {rank: one for rank, one in job.newcomers.items() if rank != culprit.rank}
            story.job = replace(job, newcomers=left)
            continue
        known = job.incidents_of(culprit.rank, GONE)
        if not info.alive and known and culprit.incarnation == info.incarnation:
            story.note(known[-1].incident_id, 0.0)
            continue
        story.resolve(job.incidents_of(culprit.rank, _SLOW), "the process is gone")
        fresh.append(culprit)
        if info.alive:
            story.job = replace(story.job, outlook=story.job.outlook.after_death(culprit.rank))
        gone = info if culprit.incarnation == info.incarnation else story.process_of(culprit)
        story.job = story.job.with_rank(replace(gone, throughput=0.0))
    if fresh:
        story.open(fresh)
    story.job = promoted(story.job)


def _slow(story: _Story, culprits: Sequence[CulpritRecord]) -> None:
    fresh: list[CulpritRecord] = []
    for culprit in culprits:
        info = story.job.ranks[culprit.rank]
        if not info.alive:
            continue
        if known := story.job.incidents_of(culprit.rank, {VerdictKind.COMPUTE_SLOW}):
            story.update(known[-1])
        else:
            fresh.append(culprit)
        outlook = story.job.outlook.after_slowdown(culprit.rank, story.at.timestamp())
        job = story.job.with_rank(replace(info, throughput=story.throughput))
        story.job = replace(job, outlook=outlook, changed=True)
    if fresh:
        story.open(fresh)


def _recovered(story: _Story, culprits: Sequence[CulpritRecord]) -> None:
    throughput = 1.0 if story.verdict.throughput >= HEALTHY else story.throughput
    for culprit in culprits:
        info = story.job.ranks[culprit.rank]
        if not info.alive:
            _moves_again(story, culprit)
            continue
        job = story.job.with_rank(replace(info, throughput=throughput))
        outlook = job.outlook.after_recovery(culprit.rank, story.at.timestamp())
        story.job = replace(job, outlook=outlook, changed=True)
        for incident in job.incidents_of(culprit.rank, {VerdictKind.COMPUTE_SLOW}):
            others = [c.rank for c in incident.culprits if c.rank != culprit.rank]
            story.note(incident.incident_id, throughput)
            if not any(job.ranks[rank].throughput < HEALTHY for rank in others):
                story.resolve([incident], "the device is healthy again")
                story.job = replace(story.job, cause=incident.incident_id)


def _moves_again(story: _Story, culprit: CulpritRecord) -> None:
    """A rank that hung goes on. Where jobs are reshaped it was left behind and told to leave; any other job waited."""
    job = with_standstill(story.job, story.at)
    hangs = [one for one in job.incidents if one.kind == VerdictKind.HANG and culprit.process in one.accused]
    if job.can_reshape or not hangs:
        return
    story.job = job.with_rank(replace(job.ranks[culprit.rank], throughput=1.0))
    story.note(hangs[-1].incident_id, 1.0)
    story.resolve(hangs[-1:], "it goes on by itself")
    story.job = replace(story.job, changed=True, running_since_unix_seconds=story.at.timestamp())


def _communication_slow(story: _Story, culprits: Sequence[CulpritRecord]) -> None:
    """An incident with advice; the devices are well, but a plan may go around the link."""
    ranks = {culprit.rank for culprit in culprits}
    alike = [one for one in story.job.incidents if one.kind == VerdictKind.COMMUNICATION_SLOW]
    if known := [one for one in alike if one.ranks == ranks]:
        story.update(known[-1])
        return
    incident_id = story.open(culprits).incident_id
    where = "; ".join(f"rank {c.rank} on {c.device} of {c.node}" for c in culprits)
    advice = "its network interface and cable" if len(culprits) == 1 else "cables, ports and switches between them"
    story.note(incident_id, story.throughput, f"devices are healthy, check {advice}: {where}")
    # One end of a link that turns out to be slow altogether takes the link's incident over.
    over = [one for one in alike if len(ranks) == 1 and ranks < one.ranks]
    story.resolve(over, f"part of {incident_id}")


def _communication_recovered(story: _Story, culprits: Sequence[CulpritRecord]) -> None:
    ranks = {culprit.rank for culprit in story.verdict.culprits}
    for incident in story.job.incidents:
        if incident.kind == VerdictKind.COMMUNICATION_SLOW and incident.ranks == ranks:
            story.note(incident.incident_id, 1.0)
            story.resolve([incident], "transfers are as before")
            story.job = replace(story.job, changed=True)


def _rejoined(story: _Story, culprits: Sequence[CulpritRecord]) -> None:
    for culprit in culprits:
        waiting = story.job.newcomers.get(culprit.rank)
        if waiting is None or waiting.incarnation < culprit.incarnation:
            waiting = story.process_of(culprit)
        if waiting.incarnation == culprit.incarnation:
            newcomers = {**story.job.newcomers, culprit.rank: replace(waiting, announced=True)}
            story.job = replace(story.job, newcomers=newcomers)
    story.job, over = in_their_places(story.job, story.at)
    story.records += over


_TAKEN: Mapping[str, Callable[[_Story, Sequence[CulpritRecord]], None]] = {
    **dict.fromkeys(GONE, _gone),
    VerdictKind.COMPUTE_SLOW: _slow,
    VerdictKind.RECOVERED: _recovered,
    VerdictKind.REJOINED: _rejoined,
    VerdictKind.COMMUNICATION_SLOW: _communication_slow,
    VerdictKind.COMMUNICATION_RECOVERED: _communication_recovered,
}


def on_applied(job: JobKnowledge, *, first_iteration: int, at: datetime) -> Transition:
    """Every rank of the layout of the plan in flight runs it. Deaths whose rank is back in its place are resolved."""
    assert job.flight is not None, "it is a plan in flight that is applied"
    plan = job.flight.record
    if plan.mode is PlanMode.RECOVER:
        job = with_standstill(job, at)
    job = replace(
        job,
        epoch=plan.epoch,
        layouts={**job.layouts, plan.epoch: plan.layout},
        flight=None,
        answered=plan.throughputs or {},
        unmeasured=AppliedPlan(record=plan, first_iteration=first_iteration, workload=job.workload),
        vacant=frozenset(),
        running_since_unix_seconds=at.timestamp(),
        # From a checkpoint it goes on with iterations that it had before.
        iteration=min(job.iteration, first_iteration - 1),
    )
    job, over = in_their_places(job, at)
    job, accounts = all_accounts(job, at, reference=plan.plan_id)
    return Transition(job, (*over, *accounts))
