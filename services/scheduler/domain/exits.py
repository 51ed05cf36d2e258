"""How processes ended, as whoever saw it reports: an error of the program is no failure of a device."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from evenkeel.contracts.verdict_ids import AGAIN, verdict_id
from evenkeel.history.records import CulpritRecord, EvidenceRecord, IncidentEventRecord, RankExitRecord, VerdictRecord
from evenkeel.history.vocabulary import IncidentEventKind, VerdictKind
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason


def exit_words(one: RankExitRecord) -> str:
    """How a process ended, for a person."""
    if one.signal:
        return f"killed by signal {one.signal}"
    return one.last_line or f"exit status {one.code}"


def program_errors(job: JobKnowledge) -> list[str]:
    """What the processes that count raised in the end: each error once, the most frequent first."""
    lines = [
        one.last_line
        for _, info in sorted(job.ranks.items())
        if not info.alive and (one := job.exits.get(info.process)) is not None and one.is_program_error
    ]
    return [line for line, _ in Counter(lines).most_common()]


def on_exits(
    job: JobKnowledge, exits: Sequence[RankExitRecord], at: datetime
) -> tuple[JobKnowledge, list[IncidentEventRecord], VerdictRecord | None]:
    """Processes have ended; the second report of a process changes nothing.

    Args:
        job: The job.
        exits: Of its ranks.
        at: Now.

    Returns:
        The new state; what the history learns beside the exits; and the verdict that the errors of the program amount
        to, which is still to be taken, if there is one.
    """
    fresh = [one for one in exits if one.process not in job.exits and one.rank in job.ranks]
    job = replace(job, exits={**job.exits, **{one.process: one for one in fresh}})
    records: list[IncidentEventRecord] = []
    errors = [one for one in fresh if one.is_program_error]
    for one in errors:
        job, caused = _caused(job, one)
        records += caused
    living = job.living
    accused = [one for one in errors if one.process in living]
    verdict = _verdict(job, accused, at) if accused else None
    return not_started(job, at), records, verdict


def not_started(job: JobKnowledge, at: datetime, *, deadline_seconds: float | None = None) -> JobKnowledge:
    """The job, stuck if none of its processes ever registered and none is left, or the time for it is over.

    Args:
        job: The job.
        at: Now.
        deadline_seconds: Set = the time for registering is over; for a person.
    """
    ever = any(info.address for info in job.ranks.values()) or job.newcomers or job.epoch > 0
    ended = [job.exits.get(info.process) for _, info in sorted(job.ranks.items())]
    if ever or job.finished or job.stuck or (deadline_seconds is None and not all(ended)):
        return job
    words = list(dict.fromkeys(exit_words(one) for one in ended if one is not None))
    detail = "none of its processes has registered"
    if words:
        detail = f"its processes ended before any had registered: {'; '.join(words[:3])}"
    elif deadline_seconds is not None:
        detail += f" in {deadline_seconds:g} s"
    return replace(job, stuck=Stuck(reason=StuckReason.NOT_STARTED, detail=detail, since=at))


def _caused(job: JobKnowledge, one: RankExitRecord) -> tuple[JobKnowledge, list[IncidentEventRecord]]:
    """A death that was told before its cause: the incident is of another kind than it looked."""
    records = list[IncidentEventRecord]()
    for incident in job.incidents:
        if incident.kind == VerdictKind.FAIL_STOP and one.process in incident.accused:
            cause = IncidentEventRecord(
                incident_id=incident.incident_id,
                kind=IncidentEventKind.CAUSE,
                reference=VerdictKind.PROGRAM_ERROR,
                at=one.at,
                detail=one.last_line,
            )
            records.append(cause)
            job = job.with_incident(replace(incident, kind=VerdictKind.PROGRAM_ERROR))
    return job, records


def _verdict(job: JobKnowledge, accused: Sequence[RankExitRecord], at: datetime) -> VerdictRecord:
    evidence = [
        EvidenceRecord(name="exit", value=float(one.code), unit="", text=f"rank {one.rank}: {one.last_line}")
        for one in accused
    ]
    processes, iteration = [one.process for one in accused], max(job.iteration, 0)
    return own_verdict(job, VerdictKind.PROGRAM_ERROR, processes, evidence, iteration=iteration, at=at)


def _id_of(job: JobKnowledge, kind: VerdictKind, rank: int, incarnation: int) -> str:
    first = verdict_id(job.job_id, kind, rank, incarnation)
    info = job.ranks[rank]
    told_before = first in job.seen and info.alive and info.incarnation == incarnation
    return verdict_id(job.job_id, kind, rank, incarnation, AGAIN) if told_before else first


def own_verdict(
    job: JobKnowledge,
    kind: VerdictKind,
    accused: Sequence[tuple[int, int]],
    evidence: Sequence[EvidenceRecord],
    *,
    iteration: int,
    at: datetime,
    confidence: float = 1.0,
) -> VerdictRecord:
    """What the scheduler itself finds of processes that are gone, with the id that the detector's would have."""
    culprits = []
    for rank, incarnation in accused:
        info = job.ranks[rank]
        node, device = (info.node, info.device) if info.incarnation == incarnation else ("", "")
        culprits.append(CulpritRecord(rank=rank, incarnation=incarnation, node=node, device=device))
    return VerdictRecord(
        verdict_id=_id_of(job, kind, *accused[0]),
        job_id=job.job_id,
        kind=kind,
        culprits=tuple(culprits),
        throughput=0.0,
        throughput_margin=0.0,
        confidence=confidence,
        first_iteration=iteration,
        decided_iteration=iteration,
        decided_at=at,
        evidence=tuple(evidence),
    )
