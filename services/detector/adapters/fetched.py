"""What a fetch brings, job by job, and what comes of it: the work of a batch, on the worker's thread."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from evenkeel.services.common.kafka import OutgoingRecord, Rejection
from evenkeel.services.common.kafka.records import Message
from evenkeel.services.detector.adapters.finding_codec import record_of, to_be_told
from evenkeel.services.detector.adapters.guarded_detector import GuardedDetector
from evenkeel.services.detector.adapters.observation_codec import Arrived
from evenkeel.services.detector.domain.frames.observation import FrameObservation, LivenessObservation, Observation
from evenkeel.services.detector.domain.job.job import Finding


@dataclass(slots=True)
class Observed:
    """What came of a batch."""

    findings: list[Finding] = field(default_factory=list)
    outgoing: list[OutgoingRecord] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    has_found: list[bool] = field(default_factory=list)
    num_samples: int = 0


def by_job(messages: Sequence[Message[Arrived]]) -> dict[str, list[Message[Arrived]]]:
    """The observations of each job in their order."""
    found: dict[str, list[Message[Arrived]]] = {}
    for message in messages:
        found.setdefault(message.content.observations[0].job_id, []).append(message)
    return found


def observe(detectors: Sequence[GuardedDetector], of_jobs: Sequence[Sequence[Message[Arrived]]]) -> Observed:
    """The work of a batch: what is there already of a job is taken together; nothing waits for more."""
    observed = Observed()
    for detector, messages in zip(detectors, of_jobs, strict=True):
        findings, refused = detector.observe([each for message in messages for each in message.content.observations])
        observed.rejections += _set_aside(messages, refused)
        observed.findings += to_be_told(findings)
        observed.has_found.append(bool(findings))
        observed.num_samples += sum(map(_num_samples, messages))
    observed.outgoing = [record_of(finding) for finding in observed.findings]
    return observed


def is_picture(observation: Observation) -> bool:
    """Whether it says where everybody is, and of nothing that happened."""
    return isinstance(observation, LivenessObservation) and observation.event is None


def _num_samples(message: Message[Arrived]) -> int:
    """Of all of its frames, which have as many ranks each."""
    observations = message.content.observations
    return len(observations) * len(observations[0]) if isinstance(observations[0], FrameObservation) else 0


def _set_aside(messages: Sequence[Message[Arrived]], refused: Sequence[tuple[int, Exception]]) -> list[Rejection]:
    """The records of observations that nobody can take, each once."""
    owners = [message.record for message in messages for _ in message.content.observations]
    reasons = {owners[place].offset: (owners[place], repr(error)) for place, error in reversed(refused)}
    return [
        Rejection(record=record, error="not_observed", reason=reason) for _, (record, reason) in sorted(reasons.items())
    ]
