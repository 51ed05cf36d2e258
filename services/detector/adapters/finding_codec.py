"""Verdicts and profiles to records for Kafka."""

from collections.abc import Sequence

from evenkeel.contracts.headers import record_headers
from evenkeel.contracts.topics import PROFILES, SUSPICIONS, VERDICTS, Topic
from evenkeel.detector.v1 import detector_pb2 as pb
from evenkeel.services.common.kafka import OutgoingRecord
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.job import Finding
from evenkeel.services.detector.domain.probes.desk import Suspicion
from evenkeel.services.detector.domain.profile.profile import Profile, RankThroughput, RankThroughputs

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
    VerdictKind.STAGE_IMBALANCE: pb.VERDICT_KIND_STAGE_IMBALANCE,
    VerdictKind.SEQUENCE_IMBALANCE: pb.VERDICT_KIND_SEQUENCE_IMBALANCE,
    VerdictKind.JITTER: pb.VERDICT_KIND_JITTER,
    VerdictKind.SUSPECTED_CORRUPTION: pb.VERDICT_KIND_SUSPECTED_CORRUPTION,
    VerdictKind.INPUT_STALL: pb.VERDICT_KIND_INPUT_STALL,
    VerdictKind.PERIODIC_PAUSE: pb.VERDICT_KIND_PERIODIC_PAUSE,
}


def to_be_told(findings: Sequence[Finding]) -> list[Finding]:
    """Some findings of one job but for the profiles among them that a later one replaces: readers want the newest."""
    newest = next((place for place in range(len(findings) - 1, -1, -1) if isinstance(findings[place], Profile)), -1)
    return [one for place, one in enumerate(findings) if place == newest or not isinstance(one, Profile)]


def record_of(finding: Finding) -> OutgoingRecord:
    """The record that publishes a finding; the same finding always gets the same id."""
    if isinstance(finding, Verdict):
        return _record(VERDICTS, finding.job_id, verdict_to_proto(finding).SerializeToString(), finding.verdict_id)
    if isinstance(finding, Suspicion):
        suspect = finding.rank if finding.link is None else f"{finding.rank}-{finding.link.partner_rank}"
        event_id = f"{finding.job_id}/suspicion/{suspect}/{finding.incarnation}/{finding.iteration}"
        return _record(SUSPICIONS, finding.job_id, suspicion_to_proto(finding).SerializeToString(), event_id)
    event_id = f"{finding.job_id}/profile/{finding.epoch}/{finding.iteration}{'/ended' if finding.ended else ''}"
    return _record(PROFILES, finding.job_id, profile_to_proto(finding).SerializeToString(), event_id)


def suspicion_to_proto(suspicion: Suspicion) -> pb.Suspicion:
    """The wire form of a suspicion."""
    link = suspicion.link
    return pb.Suspicion(
        job_id=suspicion.job_id,
        rank=suspicion.rank,
        incarnation=suspicion.incarnation,
        peer_rank=suspicion.peer_rank,
        peer_incarnation=suspicion.peer_incarnation,
        iteration=suspicion.iteration,
        at_unix_seconds=suspicion.at_unix_seconds,
        matrix_size=suspicion.matrix_size,
        link=None
        if link is None
        else pb.SuspectedLink(
            partner_rank=link.partner_rank,
            partner_incarnation=link.partner_incarnation,
            peer_partner_rank=link.peer_partner_rank,
            peer_partner_incarnation=link.peer_partner_incarnation,
            num_bytes=link.num_bytes,
        ),
    )


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
        throughputs=_throughputs_to_protos(profile.throughputs),
        exchange_seconds=profile.exchange_seconds,
        gradient_seconds=profile.gradient_seconds,
        ended=profile.ended,
        recent=[
            pb.ProfiledIteration(
                iteration=one.iteration,
                wall_seconds=one.wall_seconds,
                tokens=one.tokens,
                sums_of_squares=one.sums_of_squares,
            )
            for one in profile.recent
        ],
    )


def _throughputs_to_protos(throughputs: Sequence[RankThroughput]) -> list[pb.RankThroughput]:
    if isinstance(throughputs, RankThroughputs):
        columns = throughputs.ranks.tolist(), throughputs.throughputs.tolist(), throughputs.margins.tolist()
        return [pb.RankThroughput(rank=rank, throughput=p, margin=m) for rank, p, m in zip(*columns, strict=True)]
    return [pb.RankThroughput(rank=one.rank, throughput=one.throughput, margin=one.margin) for one in throughputs]


def _record(topic: Topic, job_id: str, value: bytes, event_id: str) -> OutgoingRecord:
    headers = record_headers(topic, SOURCE, event_id=event_id)
    return OutgoingRecord(topic=topic.name, key=job_id.encode(), value=value, headers=headers)
