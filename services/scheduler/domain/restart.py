"""A job's state from its history: what a scheduler that starts again knows."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from evenkeel.history.records import (
    CulpritRecord,
    JobRecord,
    PlanRecord,
    PlanStatus,
    RankRecord,
    RestartRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import JobState, PlanState, VerdictKind
from evenkeel.services.scheduler.domain.flips import flips_after
from evenkeel.services.scheduler.domain.job_state import AppliedPlan, JobKnowledge, Newcomer, OpenIncident, RankInfo
from evenkeel.services.scheduler.domain.replacements import GONE, promoted, unregistered
from evenkeel.services.scheduler.domain.transitions import outlook_after
from evenkeel.services.scheduler.plans.hindsight import Hindsight
from evenkeel.services.scheduler.plans.outlook import Outlook


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A job as it was left.

    Attributes:
        job: Its state; ``changed`` is set, so that the need for a plan is looked at anew.
        decided: The newest plan that was decided and not seen applied, if any: to be sent again.
        must_recover: There was such a plan, but a process that it counts on is gone: who applied it waits for that one.
        unmeasured: The plan in force, if its effect is not measured yet.
        superseded: Older decided plans that a newer epoch has overtaken.
        state: What the history last said of the job.
        hanging: Processes that were found to hang; whether they were told to leave is not known.
    """

    job: JobKnowledge
    decided: PlanStatus | None
    must_recover: bool
    unmeasured: PlanRecord | None
    superseded: tuple[PlanStatus, ...]
    state: JobState
    hanging: tuple[RankInfo, ...]


def new_job(record: JobRecord) -> JobKnowledge:
    """The state of a job that just registered."""
    ranks = (*record.layout.ranks, *record.layout.standbys)
    return JobKnowledge(
        job_id=record.job_id,
        tenant=record.tenant,
        name=record.name,
        model=record.model,
        registered_at=record.registered_at,
        home=record.layout,
        layout=record.layout,
        layouts={0: record.layout},
        ranks={rank: RankInfo(rank=rank) for rank in ranks},
    )


def resumed_job(record: RestartRecord) -> Resumed:
    """The state of a job that was there before the restart."""
    committed = [plan for plan in record.plans if plan.state is PlanState.COMMITTED]
    pending = {plan.plan.epoch for plan in committed}
    epoch = max(number for number in record.layouts if number not in pending)
    decided = max(
        (plan for plan in committed if plan.plan.epoch > epoch), key=lambda plan: plan.plan.epoch, default=None
    )
    applied = [plan for plan in record.plans if plan.state is PlanState.APPLIED and plan.plan.epoch == epoch]
    job = JobKnowledge(
        job_id=record.job.job_id,
        tenant=record.job.tenant,
        name=record.job.name,
        model=record.job.model,
        registered_at=record.job.registered_at,
        home=record.layouts[0],
        layout=record.layouts[epoch],
        epoch=epoch,
        top_epoch=max([*record.layouts, *(plan.plan.epoch for plan in record.plans)]),
        layouts=record.layouts,
        ranks={rank: RankInfo(rank=rank) for rank in (*record.layouts[0].ranks, *record.layouts[0].standbys)},
        answered=record.planned_for.get(epoch, {}),
        flips=flips_after(record.verdicts),
        seen=frozenset(verdict.verdict_id for verdict in record.verdicts),
        outlook=_outlook(record),
        hindsight=reduce(lambda known, effect: known.after(*effect), record.effects, Hindsight()),
        incidents=tuple(
            OpenIncident(
                incident_id=incident.incident_id,
                kind=incident.kind,
                culprits=incident.culprits,
                throughput=incident.throughput,
                opened_at=incident.opened_at,
                lost_seconds=incident.lost_seconds,
                told_seconds=incident.lost_seconds,
            )
            for incident in record.incidents
        ),
        unmeasured=AppliedPlan(
            plan_id=applied[-1].plan.plan_id,
            epoch=epoch,
            first_iteration=applied[-1].first_iteration or 0,
            throughputs=applied[-1].plan.throughputs or {},
        )
        if applied
        else None,
        changed=True,
        cause=_cause(record),
        exits={(one.rank, one.incarnation): one for one in record.exits},
        running_since_unix_seconds=0.0 if record.running_since is None else record.running_since.timestamp(),
    )
    job = promoted(_with_processes(job, record))
    outlived = decided is not None and not _counts_on_what_is_there(decided, job, record)
    decided = None if outlived else decided
    return Resumed(
        job=job,
        must_recover=outlived,
        decided=decided,
        unmeasured=applied[-1].plan if applied else None,
        superseded=tuple(plan for plan in committed if plan is not decided),
        state=record.job.state,
        hanging=_hanging(record),
    )


def _counts_on_what_is_there(decided: PlanStatus, job: JobKnowledge, record: RestartRecord) -> bool:
    """Whether every rank that a plan runs on or reads from has the process that it had when it was proposed."""
    processes = (*record.earlier, *record.job.ranks)
    there = {(each.rank, each.incarnation) for each in processes if each.registered_at <= decided.plan.proposed_at}
    infos = [job.ranks[rank] for rank in {*decided.plan.layout.ranks, *(decided.decision or {}).get("sources", ())}]
    return all(info.alive and (info.rank, info.incarnation) in there for info in infos)


def _cause(record: RestartRecord) -> str | None:
    """The incident that the next plan answers: the newest death or hang, else whatever is newest."""
    gone = [incident for incident in record.incidents if incident.kind in GONE]
    return next((incident.incident_id for incident in reversed(gone or record.incidents)), None)


def _hanging(record: RestartRecord) -> tuple[RankInfo, ...]:
    accused = {
        (culprit.rank, culprit.incarnation)
        for incident in record.incidents
        if incident.kind == VerdictKind.HANG
        for culprit in incident.culprits
    }
    return tuple(_process(rank) for rank in record.job.ranks if (rank.rank, rank.incarnation) in accused)


def _process(rank: RankRecord) -> RankInfo:
    return RankInfo(
        rank=rank.rank,
        incarnation=rank.incarnation,
        node=rank.node,
        device=rank.device,
        address=rank.address,
        can_reshape=rank.can_reshape,
    )


def _outlook(record: RestartRecord) -> Outlook:
    """What the job's verdicts, oldest first, say about its next failures; a repeated death counts once a process."""
    outlook, gone = Outlook(), set[tuple[int, int]]()
    for verdict in record.verdicts:
        fresh = [c for c in verdict.culprits if (c.rank, c.incarnation) not in gone]
        if verdict.kind in GONE:
            gone.update((c.rank, c.incarnation) for c in fresh)
        outlook = outlook_after(outlook, verdict.kind, fresh, verdict.decided_at)
    return outlook


def _with_processes(job: JobKnowledge, record: RestartRecord) -> JobKnowledge:
    """Who is alive and how fast, from registrations, verdicts on processes and open incidents."""
    registered: dict[int, list[RankInfo]] = {}
    for each in (*record.earlier, *record.job.ranks):
        registered.setdefault(each.rank, []).append(_process(each))
    announced, gone = _last_named(record.verdicts, {VerdictKind.REJOINED}), _last_named(record.verdicts, GONE)
    accused = _last_named(job.incidents, GONE)
    ranks, newcomers = {}, {}
    for rank in {**job.ranks, **registered}:
        processes = registered.get(rank) or [job.ranks[rank]]
        ranks[rank] = _counted(processes, announced.get(rank), accused.get(rank))
        newcomer = _newest(processes[-1], announced.get(rank))
        is_gone = rank in gone and gone[rank].incarnation >= newcomer.info.incarnation
        if newcomer.info.incarnation > ranks[rank].incarnation and not is_gone:
            newcomers[rank] = newcomer
    for incident in (one for one in job.incidents if one.kind == VerdictKind.COMPUTE_SLOW):
        for culprit in incident.culprits:
            info = ranks.get(culprit.rank)
            if info is not None and info.alive and info.incarnation == culprit.incarnation:
                ranks[info.rank] = replace(info, throughput=min(1.0, max(0.01, incident.throughput)))
    return replace(job, ranks=ranks, newcomers=newcomers)


def _last_named(findings: Iterable[VerdictRecord | OpenIncident], kinds: Collection[str]) -> dict[int, CulpritRecord]:
    """The latest process of each rank that findings of these kinds name."""
    named = (culprit for finding in findings if finding.kind in kinds for culprit in finding.culprits)
    return {culprit.rank: culprit for culprit in sorted(named, key=lambda culprit: culprit.incarnation)}


def _counted(processes: Sequence[RankInfo], announced: CulpritRecord | None, accused: CulpritRecord | None) -> RankInfo:
    """The process of a rank that layouts count on, dead or alive, of those that have registered."""
    first, *later = processes
    if accused is not None:
        return unregistered(accused, alive=False, can_reshape=processes[-1].can_reshape)
    # One that nobody has announced has taken no place: the end of the one before it was not told yet.
    taken = [one for one in later if announced is not None and one.incarnation <= announced.incarnation]
    return taken[-1] if taken else first


def _newest(registered: RankInfo, announced: CulpritRecord | None) -> Newcomer:
    """The latest process of a rank that was heard of."""
    if announced is None or announced.incarnation < registered.incarnation:
        return Newcomer(info=registered)
    if announced.incarnation == registered.incarnation:
        return Newcomer(info=registered, announced=True)
    return Newcomer(info=unregistered(announced, alive=True, can_reshape=registered.can_reshape), announced=True)
