"""The scheduler's records to and from protobuf: what the fleet API answers and what goes to the topic of plans."""

from datetime import UTC, datetime

from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.records import (
    DEFAULT_TENANT,
    IncidentState,
    JobRecord,
    JobStatus,
    PlanStatus,
    RankExitRecord,
    RankRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import JobState, VerdictKind
from evenkeel.layouts.codec import from_proto, layout_from_proto, model_from_proto, to_proto, word_of
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.serving.news import JobView


def verdict_kind_from_proto(number: int) -> str:
    """The word of a verdict kind; a number that this version does not know keeps its number."""
    word = word_of(detector_pb2.VerdictKind.DESCRIPTOR, number)
    return VerdictKind(word) if word in frozenset(VerdictKind) else f"kind_{word}" if word.isdigit() else word


def verdict_to_proto(verdict: VerdictRecord) -> detector_pb2.Verdict:
    """A verdict as the detector publishes it."""
    return to_proto(detector_pb2.Verdict, verdict, decided_at_unix_seconds=verdict.decided_at.timestamp())


def verdict_from_proto(message: detector_pb2.Verdict) -> VerdictRecord:
    """A verdict as it is recorded; its time must be one that a calendar knows."""
    decided_at = datetime.fromtimestamp(message.decided_at_unix_seconds, tz=UTC)
    return from_proto(VerdictRecord, message, kind=verdict_kind_from_proto(message.kind), decided_at=decided_at)


def incident_to_proto(incident: IncidentState) -> pb.Incident:
    """An incident as it stands."""
    return to_proto(pb.Incident, incident)


def plan_to_proto(status: PlanStatus) -> pb.Plan:
    """A plan as it stands."""
    first_iteration = -1 if status.first_iteration is None else status.first_iteration
    return to_proto(pb.Plan, status, status.plan, first_iteration=first_iteration)


def job_to_proto(job: JobView) -> pb.Job:
    """A job as it is now. A rank counts as alive once it has registered, until it is gone or done."""
    known, stuck = job.known, job.standing.stuck
    there = job.standing.there
    standing = to_proto(
        pb.Standing,
        job.standing,
        idle=[pb.IdleRanks(reason=reason, ranks=ranks) for reason, ranks in job.standing.idle],
        not_survived=[pb.Loss(units=units) for units in job.standing.not_survived],
    )
    return to_proto(
        pb.Job,
        known,
        ranks=[
            to_proto(pb.Rank, rank, alive=rank.alive and bool(rank.address) and rank.rank in there)
            for _, rank in sorted(known.ranks.items())
        ],
        cannot_reshape=not known.can_reshape,
        problem=stuck.detail if stuck and known.state is JobState.STUCK else "",
        standing=standing,
    )


def job_status_to_proto(job: JobStatus) -> pb.Job:
    """A job that only the history knows: nothing of it is alive, as far as anybody can say."""
    return to_proto(
        pb.Job,
        job,
        ranks=[to_proto(pb.Rank, rank, alive=False, throughput=0.0) for rank in job.ranks],
        cannot_reshape=not all(rank.can_reshape for rank in job.ranks),
        standing=pb.Standing(num_ranks=job.num_devices + len(job.layout.standbys), summary=job.detail or job.state),
        proportional_bound=0.0,
        problem="",
    )


def job_from_request(request: pb.RegisterJobRequest, registered_at: datetime) -> JobRecord:
    """The job that a request describes.

    Raises:
        layouts.layout.LayoutError: The layout is unusable.
    """
    return from_proto(
        JobRecord,
        request,
        tenant=request.tenant or DEFAULT_TENANT,
        name=request.name or request.job_id,
        model=model_from_proto(request.model),
        layout=layout_from_proto(request.layout),
        registered_at=registered_at,
    )


def ranks_from_request(request: pb.RegisterRanksRequest, registered_at: datetime) -> list[RankRecord]:
    """The processes that a request describes."""
    return [
        from_proto(
            RankRecord,
            process,
            job_id=request.job_id,
            registered_at=registered_at,
            can_reshape=not process.cannot_reshape,
        )
        for process in request.processes
    ]


def exits_from_request(request: pb.ReportExitsRequest, now: datetime) -> list[RankExitRecord]:
    """The ends of processes that a request tells of."""
    return [
        from_proto(
            RankExitRecord,
            one,
            job_id=request.job_id,
            at=one.at.ToDatetime(tzinfo=UTC) if one.HasField("at") else now,
        )
        for one in request.exits
    ]
