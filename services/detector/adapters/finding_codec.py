"""Verdicts and profiles to records for Kafka."""

from evenkeel.detector.v1 import detector_pb2 as pb

from contracts.headers import record_headers
from contracts.topics import PROFILES, VERDICTS, Topic
from services.common.kafka import OutgoingRecord
from services.detector.domain.verdict import Profile, Verdict, VerdictKind

SOURCE = "evenkeel/detector"

_KINDS = {
    VerdictKind.FAIL_STOP: pb.VERDICT_KIND_FAIL_STOP,
    VerdictKind.HANG: pb.VERDICT_KIND_HANG,
    VerdictKind.COMPUTE_SLOW: pb.VERDICT_KIND_COMPUTE_SLOW,
    VerdictKind.NOT_FINITE: pb.VERDICT_KIND_NOT_FINITE,
    VerdictKind.SPIKE: pb.VERDICT_KIND_SPIKE,
    VerdictKind.RECOVERED: pb.VERDICT_KIND_RECOVERED,
    VerdictKind.REJOINED: pb.VERDICT_KIND_REJOINED,
    VerdictKind.COMMUNICATION_SLOW: pb.VERDICT_KIND_COMMUNICATION_SLOW,
    VerdictKind.COMMUNICATION_RECOVERED: pb.VERDICT_KIND_COMMUNICATION_RECOVERED,
}


def record_of(finding: Verdict | Profile) -> OutgoingRecord:
    """The record that publishes a finding; the same finding always gets the same id."""
    if isinstance(finding, Verdict):
        return _record(VERDICTS, finding.job_id, verdict_to_proto(finding).SerializeToString(), finding.verdict_id)
    event_id = f"{finding.job_id}/profile/{finding.epoch}/{finding.iteration}"
    return _record(PROFILES, finding.job_id, profile_to_proto(finding).SerializeToString(), event_id)


def verdict_to_proto(verdict: Verdict) -> pb.Verdict:
    """The wire form of a verdict."""
    return pb.Verdict(
        verdict_id=verdict.verdict_id,
        job_id=verdict.job_id,
        kind=_KINDS[verdict.kind],
        culprits=[
            pb.Culprit(rank=one.rank, incarnation=one.incarnation, node=one.node, device=one.device)
            for one in verdict.culprits
        ],
        throughput=verdict.throughput,
        throughput_margin=verdict.throughput_margin,
        confidence=verdict.confidence,
        first_iteration=verdict.first_iteration,
        decided_iteration=verdict.decided_iteration,
        decided_at_unix_seconds=verdict.decided_at_unix_seconds,
        evidence=[
            pb.Evidence(name=one.name, value=one.value, unit=one.unit, text=one.text) for one in verdict.evidence
        ],
    )


def profile_to_proto(profile: Profile) -> pb.Profile:
    """The wire form of a profile."""
    return pb.Profile(
        job_id=profile.job_id,
        iteration=profile.iteration,
        seconds_per_flop=profile.seconds_per_flop,
        tokens=profile.tokens,
        sum_of_squares=profile.sum_of_squares,
        fixed_seconds=profile.fixed_seconds,
        transfer_seconds=profile.transfer_seconds,
        iteration_seconds=profile.iteration_seconds,
        epoch=profile.epoch,
        throughputs=[
            pb.RankThroughput(rank=one.rank, throughput=one.throughput, margin=one.margin)
            for one in profile.throughputs
        ],
    )


def _record(topic: Topic, job_id: str, value: bytes, event_id: str) -> OutgoingRecord:
    headers = record_headers(topic, SOURCE, event_id=event_id)
    return OutgoingRecord(topic=topic.name, key=job_id.encode(), value=value, headers=headers)
