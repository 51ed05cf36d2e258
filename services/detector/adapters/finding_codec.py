"""Verdicts and profiles to records for Kafka."""

from collections.abc import Sequence
from dataclasses import asdict, fields

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.contracts.topics import PROFILES, SUSPICIONS, VERDICTS, Topic, record_headers
from evenkeel.detector.v1 import detector_pb2 as pb
from evenkeel.services.common.kafka import OutgoingRecord
from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.job.job import Finding

SOURCE = "evenkeel/detector"


def to_be_told(findings: Sequence[Finding]) -> list[Finding]:
    """Some findings of one job but for the profiles among them that a later one replaces: readers want the newest."""
    newest = next((place for place in range(len(findings) - 1, -1, -1) if isinstance(findings[place], Profile)), -1)
    return [one for place, one in enumerate(findings) if place == newest or not isinstance(one, Profile)]


def record_of(finding: Finding) -> OutgoingRecord:
    """The record that publishes a finding; the same finding always gets the same id."""
    if isinstance(finding, Verdict):
        return _record(VERDICTS, finding.job_id, _verdict(finding).SerializeToString(), finding.verdict_id)
    if isinstance(finding, Suspicion):
        suspect = finding.rank if finding.link is None else f"{finding.rank}-{finding.link.partner_rank}"
        event_id = f"{finding.job_id}/suspicion/{suspect}/{finding.incarnation}/{finding.iteration}"
        return _record(SUSPICIONS, finding.job_id, pb.Suspicion(**asdict(finding)).SerializeToString(), event_id)
    event_id = f"{finding.job_id}/profile/{finding.epoch}/{finding.iteration}{'/ended' if finding.ended else ''}"
    return _record(PROFILES, finding.job_id, profile_to_proto(finding).SerializeToString(), event_id)


def _verdict(verdict: Verdict) -> pb.Verdict:
    """A verdict by the names of its fields, which are the message's."""
    return pb.Verdict(**asdict(verdict) | {"kind": f"VERDICT_KIND_{verdict.kind.name}"})


def profile_to_proto(profile: Profile) -> pb.Profile:
    """A profile, likewise."""
    told = {each.name: getattr(profile, each.name) for each in fields(profile)}
    return pb.Profile(**told | {name: [one._asdict() for one in told[name]] for name in ("throughputs", "recent")})


def _record(topic: Topic, job_id: str, value: bytes, event_id: str) -> OutgoingRecord:
    headers = record_headers(topic, SOURCE, event_id=event_id)
    return OutgoingRecord(topic=topic.name, key=job_id.encode(), value=value, headers=headers)
