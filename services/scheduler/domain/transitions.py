"""How a job's state changes: pure functions from (state, event) to (state, what must be recorded and done).

A verdict counts once (by id) and only for the process it names: one about an earlier incarnation changes nothing. Plans
follow from the state (:attr:`JobKnowledge.need`), never from an event: whatever is lost in a crash, a restart that
rebuilds the state asks for the same plan again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from evenkeel.history.records import (
    CulpritRecord,
    IncidentEventRecord,
    IncidentRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import IncidentEventKind, PlanMode, VerdictKind
from evenkeel.services.scheduler.domain.flips import flipped
from evenkeel.services.scheduler.domain.job_state import (
    HEALTHY,
    AppliedPlan,
    JobKnowledge,
    Newcomer,
    OpenIncident,
    RankInfo,
)
from evenkeel.services.scheduler.domain.losses import all_accounts, with_standstill
from evenkeel.services.scheduler.domain.replacements import GONE, in_their_places, promoted, unregistered
from evenkeel.services.scheduler.plans.outlook import Outlook

_SLOW = frozenset((VerdictKind.COMPUTE_SLOW, VerdictKind.COMMUNICATION_SLOW))

IncidentChange = IncidentRecord | IncidentEventRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What an event leads to.

    Attributes:
        job: The new state.
        records: What goes into the history, in this order, together with the event itself.
        evict: Processes (rank, incarnation) that live and must leave for good.
    """

    job: JobKnowledge
    records: tuple[IncidentChange, ...] = ()
    evict: tuple[tuple[int, int], ...] = ()


def incident_id_of(verdict: VerdictRecord) -> str:
    """Id of the incident that a verdict opens: a pure function of the verdict, so that a replay opens none twice."""
    return f"incident-{verdict.verdict_id}"


def on_verdict(job: JobKnowledge, verdict: VerdictRecord) -> Transition:
    """A verdict arrived; the second time it changes nothing."""
    if verdict.verdict_id in job.seen or job.finished:
        return Transition(job=job)
    job = replace(job, seen=job.seen | {verdict.verdict_id})
    current = tuple(culprit for culprit in verdict.culprits if _is_current(job, culprit, verdict.kind))
    if not current:
        return Transition(job=job)
    news = [c for c in current if verdict.kind not in GONE or job.ranks[c.rank].alive]
    job = replace(job, outlook=outlook_after(job.outlook, verdict.kind, news, verdict.decided_at))
    if verdict.kind in GONE:
        return _gone(job, verdict, current)
    if verdict.kind == VerdictKind.COMPUTE_SLOW:
        return _slow(job, verdict, current)
    if verdict.kind == VerdictKind.RECOVERED:
        return _recovered(job, verdict, current)
    if verdict.kind == VerdictKind.REJOINED:
        return _rejoined(job, verdict, current)
    if verdict.kind == VerdictKind.COMMUNICATION_SLOW:
        return _communication_slow(job, verdict, current)
    if verdict.kind == VerdictKind.COMMUNICATION_RECOVERED:
        return _communication_recovered(job, verdict)
    return Transition(job=job)


def outlook_after(outlook: Outlook, kind: str, culprits: Sequence[CulpritRecord], at: datetime) -> Outlook:
    """What is expected of the job's failures once a verdict has arrived."""
    for culprit in culprits:
        if kind in GONE:
            outlook = outlook.after_death(culprit.rank)
        elif kind == VerdictKind.COMPUTE_SLOW:
            outlook = outlook.after_slowdown(culprit.rank, at.timestamp())
        elif kind == VerdictKind.RECOVERED:
            outlook = outlook.after_recovery(culprit.rank, at.timestamp())
    return outlook


def _is_current(job: JobKnowledge, culprit: CulpritRecord, kind: str) -> bool:
    """True when a verdict is about the process that its rank has now, or about a waiting or coming one."""
    info = job.ranks.get(culprit.rank)
    if info is None:
        return False
    if kind == VerdictKind.REJOINED:
        return culprit.incarnation > info.incarnation or not info.alive
    newcomer = job.newcomers.get(culprit.rank)
    if newcomer is not None and culprit.incarnation == newcomer.info.incarnation:
        return kind in GONE
    return culprit.incarnation == info.incarnation or (culprit.incarnation > info.incarnation and kind in GONE)


def _opened(verdict: VerdictRecord, culprits: Sequence[CulpritRecord]) -> tuple[OpenIncident, IncidentRecord]:
    throughput = 0.0 if verdict.kind in GONE else verdict.throughput
    record = IncidentRecord(
        incident_id=incident_id_of(verdict),
        job_id=verdict.job_id,
        verdict_id=verdict.verdict_id,
        kind=verdict.kind,
        culprits=tuple(culprits),
        first_iteration=verdict.first_iteration,
        throughput=throughput,
        opened_at=verdict.decided_at,
    )
    incident = OpenIncident(
        incident_id=record.incident_id,
        kind=record.kind,
        culprits=record.culprits,
        throughput=throughput,
        opened_at=record.opened_at,
    )
    return incident, record


def _noted(incident: OpenIncident, verdict: VerdictRecord, throughput: float) -> IncidentEventRecord:
    return IncidentEventRecord(
        incident_id=incident.incident_id,
        kind=IncidentEventKind.VERDICT,
        reference=verdict.verdict_id,
        at=verdict.decided_at,
        throughput=throughput,
        detail=f"{verdict.kind} of rank {', '.join(str(c.rank) for c in verdict.culprits)}",
    )


def _gone(job: JobKnowledge, verdict: VerdictRecord, culprits: Sequence[CulpritRecord]) -> Transition:
    records: list[IncidentChange] = []
    fresh: list[CulpritRecord] = []
    # Where nobody can be left behind, one that hangs may still go on, and the others with it.
    leaves = verdict.kind == VerdictKind.HANG and job.can_reshape
    evict = tuple((c.rank, c.incarnation) for c in culprits) if leaves else ()
    newcomers = dict(job.newcomers)
    for culprit in culprits:
        info = job.ranks[culprit.rank]
        newcomer = newcomers.get(culprit.rank)
        if newcomer is not None and newcomer.info.incarnation == culprit.incarnation:
            del newcomers[culprit.rank]
            continue
        known = [i for i in job.incidents if i.kind in GONE and i.accuses(culprit.rank)]
        if not info.alive and known and culprit.incarnation == info.incarnation:
            records.append(_noted(known[-1], verdict, 0.0))
            continue
        for slow in [i for i in job.incidents if i.kind in _SLOW and i.accuses(culprit.rank)]:
            records.append(slow.resolved(verdict.decided_at, "the process is gone"))
            job = replace(job, incidents=tuple(i for i in job.incidents if i is not slow))
        fresh.append(culprit)
        gone = replace(info, alive=False, throughput=0.0)
        job = job.with_rank(gone if culprit.incarnation == info.incarnation else _process(job, culprit, alive=False))
    job = replace(job, newcomers=newcomers)
    if fresh:
        incident, record = _opened(verdict, fresh)
        job = replace(job, incidents=(*job.incidents, incident), changed=True, cause=incident.incident_id)
        records.insert(0, record)
    return Transition(job=promoted(job), records=tuple(records), evict=evict)


def _process(job: JobKnowledge, culprit: CulpritRecord, *, alive: bool) -> RankInfo:
    return unregistered(culprit, alive=alive, can_reshape=job.ranks[culprit.rank].can_reshape)


def _slow(job: JobKnowledge, verdict: VerdictRecord, culprits: Sequence[CulpritRecord]) -> Transition:
    throughput = min(1.0, max(0.01, verdict.throughput))
    records: list[IncidentChange] = []
    fresh: list[CulpritRecord] = []
    for culprit in culprits:
        info = job.ranks[culprit.rank]
        if not info.alive:
            continue
        known = [i for i in job.incidents if i.kind == VerdictKind.COMPUTE_SLOW and i.accuses(culprit.rank)]
        if known:
            newer = replace(known[-1], throughput=throughput)
            records.append(_noted(newer, verdict, throughput))
            job = replace(
                job,
                incidents=tuple(newer if i is known[-1] else i for i in job.incidents),
                cause=newer.incident_id,
            )
        else:
            fresh.append(culprit)
            job = flipped(job, culprit.rank, verdict.decided_at)
        job = replace(job.with_rank(replace(info, throughput=throughput)), changed=True)
    if fresh:
        incident, record = _opened(verdict, fresh)
        job = replace(job, incidents=(*job.incidents, incident), cause=incident.incident_id)
        records.insert(0, record)
    return Transition(job=job, records=tuple(records))


def _recovered(job: JobKnowledge, verdict: VerdictRecord, culprits: Sequence[CulpritRecord]) -> Transition:
    throughput = 1.0 if verdict.throughput >= HEALTHY else max(0.01, verdict.throughput)
    records: list[IncidentChange] = []
    for culprit in culprits:
        info = job.ranks[culprit.rank]
        if not info.alive:
            job, told = _moves_again(job, verdict, culprit)
            records += told
            continue
        job = flipped(job.with_rank(replace(info, throughput=throughput)), culprit.rank, verdict.decided_at)
        job = replace(job, changed=True)
        for incident in [i for i in job.incidents if i.kind == VerdictKind.COMPUTE_SLOW and i.accuses(culprit.rank)]:
            others = [c.rank for c in incident.culprits if c.rank != culprit.rank]
            records.append(_noted(incident, verdict, throughput))
            if any(job.ranks[rank].throughput < HEALTHY for rank in others):
                continue
            records.append(incident.resolved(verdict.decided_at, "the device is healthy again"))
            remaining = tuple(i for i in job.incidents if i is not incident)
            job = replace(job, incidents=remaining, cause=incident.incident_id)
    return Transition(job=job, records=tuple(records))


def _moves_again(
    job: JobKnowledge, verdict: VerdictRecord, culprit: CulpritRecord
) -> tuple[JobKnowledge, list[IncidentChange]]:
    """A rank that hung goes on. Where jobs are reshaped it was left behind and told to leave; any other job waited."""
    process = (culprit.rank, culprit.incarnation)
    hangs = [
        incident
        for incident in job.incidents
        if incident.kind == VerdictKind.HANG and process in ((c.rank, c.incarnation) for c in incident.culprits)
    ]
    if job.can_reshape or not hangs:
        return job, []
    job = with_standstill(job, verdict.decided_at)
    job = job.with_rank(replace(job.ranks[culprit.rank], alive=True, throughput=1.0))
    over = [incident for incident in job.incidents if incident.incident_id == hangs[-1].incident_id]
    records: list[IncidentChange] = []
    for incident in over:
        records += [_noted(incident, verdict, 1.0), incident.resolved(verdict.decided_at, "it goes on by itself")]
    remaining = tuple(incident for incident in job.incidents if incident not in over)
    running_since = verdict.decided_at.timestamp()
    return replace(job, incidents=remaining, changed=True, running_since_unix_seconds=running_since), records


def _communication_slow(job: JobKnowledge, verdict: VerdictRecord, culprits: Sequence[CulpritRecord]) -> Transition:
    """An incident with advice; the devices are well, but a plan may go around the link."""
    throughput = min(1.0, max(0.01, verdict.throughput))
    ranks = {culprit.rank for culprit in culprits}
    known = [i for i in job.incidents if i.kind == verdict.kind and {c.rank for c in i.culprits} == ranks]
    if known:
        newer = replace(known[-1], throughput=throughput)
        incidents = tuple(newer if i is known[-1] else i for i in job.incidents)
        again = replace(job, incidents=incidents, changed=True, cause=newer.incident_id)
        return Transition(job=again, records=(_noted(newer, verdict, throughput),))
    incident, record = _opened(verdict, culprits)
    where = "; ".join(f"rank {c.rank} on {c.device} of {c.node}" for c in culprits)
    advice = "its network interface and cable" if len(culprits) == 1 else "cables, ports and switches between them"
    told = replace(_noted(incident, verdict, throughput), detail=f"devices are healthy, check {advice}: {where}")
    # One end of a link that turns out to be slow altogether takes the link's incident over.
    over = [i for i in job.incidents if i.kind == verdict.kind and len(ranks) == 1 and i.accuses(*ranks)]
    records: list[IncidentChange] = [record, told]
    records += [i.resolved(verdict.decided_at, f"part of {incident.incident_id}") for i in over]
    remaining = tuple(i for i in job.incidents if i not in over)
    slow = replace(job, incidents=(*remaining, incident), changed=True, cause=incident.incident_id)
    return Transition(job=slow, records=tuple(records))


def _communication_recovered(job: JobKnowledge, verdict: VerdictRecord) -> Transition:
    ranks = {culprit.rank for culprit in verdict.culprits}
    kind = VerdictKind.COMMUNICATION_SLOW
    over = [i for i in job.incidents if i.kind == kind and {c.rank for c in i.culprits} == ranks]
    records: list[IncidentChange] = []
    for incident in over:
        records += [_noted(incident, verdict, 1.0), incident.resolved(verdict.decided_at, "transfers are as before")]
    remaining = tuple(i for i in job.incidents if i not in over)
    return Transition(job=replace(job, incidents=remaining, changed=job.changed or bool(over)), records=tuple(records))


def _rejoined(job: JobKnowledge, verdict: VerdictRecord, culprits: Sequence[CulpritRecord]) -> Transition:
    for culprit in culprits:
        waiting = job.newcomers.get(culprit.rank)
        if waiting is not None and waiting.info.incarnation > culprit.incarnation:
            continue
        if waiting is not None and waiting.info.incarnation == culprit.incarnation:
            newcomer = replace(waiting, announced=True)
        else:
            newcomer = Newcomer(info=_process(job, culprit, alive=True), announced=True)
        job = replace(job, newcomers={**job.newcomers, culprit.rank: newcomer})
    job, over = in_their_places(job, verdict.decided_at)
    return Transition(job=job, records=tuple(over))


def on_applied(job: JobKnowledge, *, first_iteration: int, at: datetime) -> Transition:
    """Every rank of the layout of the plan in flight runs it. Deaths whose rank is back in its place are resolved."""
    assert job.flight is not None, "it is a plan in flight that is applied"
    plan = job.flight.record
    if plan.mode is PlanMode.RECOVER:
        job = with_standstill(job, at)
    job = replace(
        job,
        epoch=plan.epoch,
        layout=plan.layout,
        layouts={**job.layouts, plan.epoch: plan.layout},
        top_epoch=max(job.top_epoch, plan.epoch),
        flight=None,
        answered=plan.throughputs or {},
        unmeasured=AppliedPlan(record=plan, first_iteration=first_iteration, workload=job.workload),
        stuck=None,
        vacant=frozenset(),
        running_since_unix_seconds=at.timestamp(),
        # From a checkpoint it goes on with iterations that it had before.
        iteration=min(job.iteration, first_iteration - 1),
    )
    job, over = in_their_places(job, at)
    job, accounts = all_accounts(job, at, reference=plan.plan_id)
    return Transition(job=job, records=(*over, *accounts))
