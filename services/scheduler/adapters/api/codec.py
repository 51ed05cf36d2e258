"""The scheduler's records to and from protobuf: what the fleet API answers and what goes to the topic of plans."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.records import (
    DEFAULT_TENANT,
    CulpritRecord,
    EvidenceRecord,
    IncidentState,
    JobRecord,
    JobStatus,
    PlanStatus,
    RankExitRecord,
    RankRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts.codec import layout_from_proto, layout_to_proto, model_from_proto, model_to_proto
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.fleet_port import JobView, RankView
from evenkeel.services.scheduler.domain.standing import Standing


def timestamp(at: datetime) -> Timestamp:
    """A protobuf timestamp."""
    message = Timestamp()
    message.FromDatetime(at.astimezone(UTC))
    return message


# Stored words by the numbers of this version's enums, and back.
_VERDICT_KINDS = {
    name.removeprefix("VERDICT_KIND_").lower(): number for name, number in detector_pb2.VerdictKind.items()
}
_JOB_STATES = {name.removeprefix("JOB_STATE_").lower(): number for name, number in pb.JobState.items()}
_PLAN_STATES = {name.removeprefix("PLAN_STATE_").lower(): number for name, number in pb.PlanState.items()}
_STUCK_REASONS = {name.removeprefix("STUCK_REASON_").lower(): number for name, number in pb.StuckReason.items()}
_VERDICT_WORDS = {number: word for word, number in _VERDICT_KINDS.items()}


def verdict_kind_to_proto(kind: str) -> detector_pb2.VerdictKind.ValueType:
    """The number of a verdict kind; UNSPECIFIED for a word that this version does not know."""
    return _VERDICT_KINDS.get(kind, detector_pb2.VERDICT_KIND_UNSPECIFIED)


def verdict_kind_from_proto(number: int) -> str:
    """The word of a verdict kind; a number that this version does not know keeps its number."""
    word = next((word for known, word in _VERDICT_WORDS.items() if known == number), f"kind_{number}")
    return VerdictKind(word) if word in frozenset(VerdictKind) else word


def _culprit_to_proto(culprit: CulpritRecord) -> detector_pb2.Culprit:
    return detector_pb2.Culprit(
        rank=culprit.rank, incarnation=culprit.incarnation, node=culprit.node, device=culprit.device
    )


def verdict_to_proto(verdict: VerdictRecord) -> detector_pb2.Verdict:
    """A verdict as the detector publishes it."""
    return detector_pb2.Verdict(
        verdict_id=verdict.verdict_id,
        job_id=verdict.job_id,
        kind=verdict_kind_to_proto(verdict.kind),
        culprits=[_culprit_to_proto(culprit) for culprit in verdict.culprits],
        throughput=verdict.throughput,
        throughput_margin=verdict.throughput_margin,
        confidence=verdict.confidence,
        first_iteration=verdict.first_iteration,
        decided_iteration=verdict.decided_iteration,
        decided_at_unix_seconds=verdict.decided_at.timestamp(),
        evidence=[
            detector_pb2.Evidence(name=fact.name, value=fact.value, unit=fact.unit, text=fact.text)
            for fact in verdict.evidence
        ],
    )


def verdict_from_proto(message: detector_pb2.Verdict) -> VerdictRecord:
    """A verdict as it is recorded.

    Raises:
        ValueError: Its time is none that a calendar knows.
    """
    try:
        decided_at = datetime.fromtimestamp(message.decided_at_unix_seconds, tz=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"decided_at_unix_seconds {message.decided_at_unix_seconds}: {error}") from error
    return VerdictRecord(
        verdict_id=message.verdict_id,
        job_id=message.job_id,
        kind=verdict_kind_from_proto(message.kind),
        culprits=tuple(
            CulpritRecord(rank=culprit.rank, incarnation=culprit.incarnation, node=culprit.node, device=culprit.device)
            for culprit in message.culprits
        ),
        throughput=message.throughput,
        throughput_margin=message.throughput_margin,
        confidence=message.confidence,
        first_iteration=message.first_iteration,
        decided_iteration=message.decided_iteration,
        decided_at=decided_at,
        evidence=tuple(
            EvidenceRecord(name=fact.name, value=fact.value, unit=fact.unit, text=fact.text)
            for fact in message.evidence
        ),
    )


def incident_to_proto(incident: IncidentState) -> pb.Incident:
    """An incident as it stands."""
    return pb.Incident(
        incident_id=incident.incident_id,
        job_id=incident.job_id,
        kind=verdict_kind_to_proto(incident.kind),
        culprits=[_culprit_to_proto(culprit) for culprit in incident.culprits],
        opened_at=timestamp(incident.opened_at),
        resolved_at=None if incident.resolved_at is None else timestamp(incident.resolved_at),
        first_iteration=incident.first_iteration,
        throughput=incident.throughput,
        lost_seconds=incident.lost_seconds,
        plan_ids=incident.plan_ids,
        verdict_id=incident.verdict_id,
        notes=incident.notes,
    )


def plan_to_proto(status: PlanStatus) -> pb.Plan:
    """A plan as it stands."""
    plan = status.plan
    return pb.Plan(
        plan_id=plan.plan_id,
        job_id=plan.job_id,
        incident_id=plan.incident_id or "",
        state=_PLAN_STATES[status.state],
        epoch=plan.epoch,
        layout=layout_to_proto(plan.layout),
        actions=[
            pb.Action(lever=action.lever, description=action.description, gain_seconds=action.gain_seconds)
            for action in plan.actions
        ],
        idle_seconds=plan.idle_seconds,
        predicted_seconds=plan.predicted_seconds,
        measured_seconds=status.measured_seconds or 0.0,
        cost_seconds=plan.cost_seconds,
        proportional_bound=plan.proportional_bound,
        alternatives=[
            pb.Alternative(name=other.name, predicted_seconds=other.predicted_seconds, reason=other.reason)
            for other in plan.alternatives
        ],
        reason=plan.reason,
        solve_seconds=plan.solve_seconds,
        at=timestamp(status.at),
        first_iteration=-1 if status.first_iteration is None else status.first_iteration,
    )


def _rank_to_proto(rank: RankView) -> pb.Rank:
    return pb.Rank(
        rank=rank.rank,
        incarnation=rank.incarnation,
        node=rank.node,
        device=rank.device,
        address=rank.address,
        alive=rank.alive,
        throughput=rank.throughput,
    )


def job_to_proto(job: JobView) -> pb.Job:
    """A job as it is now."""
    return pb.Job(
        job_id=job.job_id,
        tenant=job.tenant,
        name=job.name,
        model=model_to_proto(job.model),
        layout=layout_to_proto(job.layout),
        epoch=job.epoch,
        state=_JOB_STATES[job.state],
        registered_at=timestamp(job.registered_at),
        ranks=[_rank_to_proto(rank) for rank in job.ranks],
        proportional_bound=job.proportional_bound,
        cannot_reshape=not job.can_reshape,
        problem=job.problem,
        standing=_standing_to_proto(job.standing),
    )


def _standing_to_proto(standing: Standing) -> pb.Standing:
    stuck = standing.stuck
    return pb.Standing(
        training=standing.training,
        num_ranks=standing.num_ranks,
        idle=[pb.IdleRanks(reason=reason, ranks=ranks) for reason, ranks in standing.idle],
        joining=standing.joining,
        gone=standing.gone,
        stuck=None
        if stuck is None
        else pb.Stuck(
            reason=_STUCK_REASONS[stuck.reason],
            detail=stuck.detail,
            since=timestamp(stuck.since),
            frees_by=stuck.frees_by,
        ),
        summary=standing.summary,
        not_survived=[pb.Loss(units=units) for units in standing.not_survived],
    )


def job_status_to_proto(job: JobStatus) -> pb.Job:
    """A job that only the history knows: nothing of it is alive, as far as anybody can say."""
    return pb.Job(
        job_id=job.job_id,
        tenant=job.tenant,
        name=job.name,
        model=model_to_proto(job.model),
        layout=layout_to_proto(job.layout),
        epoch=job.epoch,
        state=_JOB_STATES[job.state],
        registered_at=timestamp(job.registered_at),
        ranks=[
            pb.Rank(
                rank=rank.rank,
                incarnation=rank.incarnation,
                node=rank.node,
                device=rank.device,
                address=rank.address,
            )
            for rank in job.ranks
        ],
        cannot_reshape=not all(rank.can_reshape for rank in job.ranks),
        standing=pb.Standing(num_ranks=job.num_devices + len(job.layout.standbys), summary=job.detail or job.state),
    )


def job_from_request(request: pb.RegisterJobRequest, registered_at: datetime) -> JobRecord:
    """The job that a request describes.

    Raises:
        layouts.layout.LayoutError: The layout is unusable.
    """
    return JobRecord(
        job_id=request.job_id,
        tenant=request.tenant or DEFAULT_TENANT,
        name=request.name or request.job_id,
        job_token=request.job_token,
        model=model_from_proto(request.model),
        layout=layout_from_proto(request.layout),
        registered_at=registered_at,
    )


def ranks_from_request(request: pb.RegisterRanksRequest, registered_at: datetime) -> list[RankRecord]:
    """The processes that a request describes."""
    return [
        RankRecord(
            job_id=request.job_id,
            rank=process.rank,
            incarnation=process.incarnation,
            node=process.node,
            device=process.device,
            address=process.address,
            process_id=process.process_id,
            registered_at=registered_at,
            can_reshape=not process.cannot_reshape,
        )
        for process in request.processes
    ]


def exits_from_request(request: pb.ReportExitsRequest, now: datetime) -> list[RankExitRecord]:
    """The ends of processes that a request tells of."""
    return [
        RankExitRecord(
            job_id=request.job_id,
            rank=one.rank,
            incarnation=one.incarnation,
            code=one.code,
            signal=one.signal,
            last_line=one.last_line,
            lost_peer=one.lost_peer,
            at=one.at.ToDatetime(tzinfo=UTC) if one.HasField("at") else now,
        )
        for one in request.exits
    ]
