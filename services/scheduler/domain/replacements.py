"""Later processes of ranks: when they count, and which incidents are over because they are in place."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from evenkeel.contracts.verdict_ids import AGAIN, verdict_id
from evenkeel.history.records import IncidentEventRecord, RankRecord
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import OpenIncident, RankInfo
from evenkeel.services.scheduler.domain.stuck import StuckReason

GONE = frozenset((VerdictKind.FAIL_STOP, VerdictKind.HANG, VerdictKind.PROGRAM_ERROR))
"""Kinds of verdicts after which a process does not count any more."""


def hanging(job: JobKnowledge) -> dict[tuple[int, int], RankInfo]:
    """Processes that must leave because they hang, and of which nobody knows whether they were told."""
    accused = {process for one in job.incidents if one.kind == VerdictKind.HANG for process in one.accused}
    found = {process: info for process in sorted(accused) if (info := job.ranks[process[0]]).process == process}
    return found if found and job.can_reshape else {}


def on_rank_registered(job: JobKnowledge, record: RankRecord) -> JobKnowledge:
    """A process of a rank of the job registered its controller; an older one than the known one changes nothing."""
    info = job.ranks[record.rank]
    process = RankInfo(
        rank=record.rank,
        incarnation=record.incarnation,
        node=record.node,
        device=record.device,
        address=record.address,
        can_reshape=record.can_reshape,
    )
    if record.incarnation < info.incarnation:
        return job
    if job.stuck_by is StuckReason.NOT_STARTED:
        job = replace(job, stuck=None)
    if record.incarnation == info.incarnation:
        known = replace(process, throughput=info.throughput)
        news = not info.address and (job.epoch > 0 or not record.can_reshape)
        return heard_again(replace(job.with_rank(known), changed=job.changed or news), record.rank)
    if not info.address and info.alive and job.epoch == 0:
        return job.with_rank(process)  # the first process that got as far as registering
    waiting = job.newcomers.get(record.rank)
    if waiting is not None and waiting.incarnation > record.incarnation:
        return job
    announced = waiting is not None and waiting.announced and waiting.incarnation == record.incarnation
    return promoted(replace(job, newcomers={**job.newcomers, record.rank: replace(process, announced=announced)}))


def heard_again(job: JobKnowledge, rank: int) -> JobKnowledge:
    """A rank's process speaks: it lives, also where it was taken for dead because its host was cut off from here.

    Not one that was told to leave, as it hangs, none that is known to have ended or to have a successor, and none that
    was taken for dead again: it would come and go.
    """
    info = job.ranks[rank]
    again = verdict_id(job.job_id, VerdictKind.FAIL_STOP, *info.process, AGAIN)
    told = again in job.seen or any(one.kind != VerdictKind.FAIL_STOP for one in job.incidents_of(rank, GONE))
    if info.alive or told or info.process in job.exits or rank in job.newcomers:
        return job
    return replace(job.with_rank(replace(info, throughput=1.0)), changed=True, stuck=None)


def promoted(job: JobKnowledge) -> JobKnowledge:
    """Newcomers that are announced and registered take their ranks over, where nobody counts on the earlier process.

    Where nothing can be made of those that are left, they take over the dead's places too: what they lack comes from a
    copy or from disk. In a job that cannot be reshaped they take their places at once: its loop sees to what they lack.
    """
    counted, can_reshape = job.counted_on, job.can_reshape
    for rank, newcomer in sorted(job.newcomers.items()):
        dead = job.stuck and job.flight is None and not job.ranks[rank].alive
        if not newcomer.announced:
            continue
        if newcomer.address and (rank not in counted or dead or not can_reshape):
            job = replace(
                job.with_rank(newcomer),
                newcomers={other: n for other, n in job.newcomers.items() if other != rank},
                changed=True,
                cause=next((one.incident_id for one in reversed(job.incidents_of(rank, GONE))), job.cause),
                vacant=job.vacant | ({rank} & counted if can_reshape else set()),
                stuck=None if rank not in counted else job.stuck,
            )
        elif job.ranks[rank].alive and rank in counted:
            # The earlier process cannot be alive beside a later one: its death was not seen.
            job = replace(job.with_rank(replace(job.ranks[rank], throughput=0.0)), changed=True)
    return job


def in_their_places(job: JobKnowledge, at: datetime) -> tuple[JobKnowledge, list[IncidentEventRecord]]:
    """The job with its newcomers promoted, without incidents that are over by that; and the ends of those.

    A death is over when its ranks are all back in their places, a slowness when a rank of it has another process. Where
    a layout of as many ranks as at the beginning does without a rank, its place is that of a spare.
    """
    job = promoted(job)
    is_whole = len(job.layout.ranks) >= len(job.home.ranks)
    back = {
        rank: info.incarnation
        for rank, info in job.ranks.items()
        if info.alive and rank not in job.vacant and (is_whole or rank in job.layout.ranks)
    }

    def is_over(incident: OpenIncident) -> bool:
        if incident.kind in GONE:
            return all(back.get(c.rank, -1) >= c.incarnation for c in incident.culprits)
        return any(job.ranks[c.rank].incarnation > c.incarnation for c in incident.culprits)

    over = [incident for incident in job.incidents if is_over(incident)]
    return job.without(over), [incident.resolved(at, _how_over(incident, back)) for incident in over]


def _how_over(incident: OpenIncident, back: Mapping[int, int]) -> str:
    if incident.kind not in GONE:
        return "the process is gone"
    same = any(back[culprit.rank] == culprit.incarnation for culprit in incident.culprits)
    return "it is heard again" if same else "a replacement is in its place"
