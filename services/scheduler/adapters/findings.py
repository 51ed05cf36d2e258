"""What the detector says of jobs, out of the records that it says it in."""

import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError

from evenkeel.contracts.suspicion import SuspectedLink, Suspicion
from evenkeel.contracts.topics import PROFILES, SUSPICIONS, VERDICTS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.records import VerdictRecord
from evenkeel.layouts.codec import from_proto
from evenkeel.planning.costs.cost_model import Workload
from evenkeel.planning.costs.measured.recent import RecentIteration
from evenkeel.services.common.kafka import ConsumedRecord, RejectedRecordError
from evenkeel.services.common.kafka.ports import Decoder
from evenkeel.services.scheduler.adapters.api.codec import verdict_from_proto
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile

Finding = VerdictRecord | JobProfile | JobEnded | Suspicion

# The last that a calendar knows are of the year 9999.
_MOST_SECONDS = 2.5e11
# What an index of the history takes is some ten times this.
_MOST_CHARACTERS = 256

_Message = TypeVar("_Message", detector_pb2.Verdict, detector_pb2.Profile, detector_pb2.Suspicion)


def _message_in(record: ConsumedRecord, kind: type[_Message]) -> _Message:
    """The message in a record, under its job's key.

    Raises:
        RejectedRecordError: It is none, or stands under another key.
    """
    try:
        message = kind.FromString(record.value or b"")
    except DecodeError as error:
        raise RejectedRecordError("malformed", f"not a {kind.DESCRIPTOR.name}: {error}") from error
    if not message.job_id or record.key != message.job_id.encode():
        raise RejectedRecordError("key", f"key {record.key!r} is not the job id {message.job_id!r} of the message")
    return message


def decode_verdict(record: ConsumedRecord) -> VerdictRecord:
    """The verdict in a record.

    Raises:
        RejectedRecordError: It is no verdict, or one that cannot be.
    """
    message = _message_in(record, detector_pb2.Verdict)
    if not message.verdict_id:
        raise RejectedRecordError("value", "the verdict has no verdict_id")
    for name in ("throughput", "throughput_margin", "confidence", "decided_at_unix_seconds"):
        if not 0.0 <= getattr(message, name) < _MOST_SECONDS:
            raise RejectedRecordError("value", f"{name} is {getattr(message, name)}")
    if any(culprit.rank < 0 or culprit.incarnation < 0 for culprit in message.culprits):
        raise RejectedRecordError("value", "a culprit has a negative rank or incarnation")
    if any("\0" in text for text in _texts(message)):
        raise RejectedRecordError("value", "a text contains a zero character")
    for text in _names(message):
        if len(text) > _MOST_CHARACTERS:
            raise RejectedRecordError("value", f"an id or name has {len(text)} characters, at most {_MOST_CHARACTERS}")
    return verdict_from_proto(message)


def _names(verdict: detector_pb2.Verdict) -> Iterator[str]:
    yield verdict.verdict_id
    for culprit in verdict.culprits:
        yield from (culprit.node, culprit.device)


def _texts(verdict: detector_pb2.Verdict) -> Iterator[str]:
    yield from _names(verdict)
    for fact in verdict.evidence:
        yield from (fact.name, fact.unit, fact.text)


def decode_profile(record: ConsumedRecord) -> JobProfile | JobEnded:
    """The profile in a record, or the end of a job, whose speed is nobody's business any more.

    Raises:
        RejectedRecordError: It is no profile, or one that cannot be.
    """
    message = _message_in(record, detector_pb2.Profile)
    if message.ended:
        return JobEnded(job_id=message.job_id)
    # A loop that does not know what its model costs has no price: the scheduler makes one of its iterations' time.
    priced = message.seconds_per_flop != 0.0
    try:
        workload = Workload(
            seconds_per_flop=message.seconds_per_flop if priced else 1.0,
            tokens=message.tokens,
            sum_of_squares=message.sum_of_squares,
            fixed_seconds=message.fixed_seconds,
            transfer_seconds=message.transfer_seconds,
            recent=tuple([from_proto(RecentIteration, one) for one in message.recent]),
        )
    except ValueError as error:
        raise RejectedRecordError("value", str(error)) from error
    for name in ("exchange_seconds", "gradient_seconds"):
        if not 0.0 <= getattr(message, name) < math.inf:
            raise RejectedRecordError("value", f"{name} is {getattr(message, name)}")
    return from_proto(
        JobProfile,
        message,
        workload=workload,
        priced=priced,
        throughputs={t.rank: t.throughput for t in message.throughputs if math.isfinite(t.throughput)},
        taken_at_unix_seconds=0.0,
    )


def decode_suspicion(record: ConsumedRecord) -> Suspicion:
    """The suspicion in a record.

    Raises:
        RejectedRecordError: It is no suspicion, or one that cannot be.
    """
    message = _message_in(record, detector_pb2.Suspicion)
    link = from_proto(SuspectedLink, message.link) if message.HasField("link") else None
    suspicion = from_proto(Suspicion, message, link=link)
    ranks = [rank for rank, _ in suspicion.processes]
    if min(min(process) for process in suspicion.processes) < 0 or len(set(ranks)) < len(ranks):
        raise RejectedRecordError("value", f"a suspicion about ranks {ranks}")
    size = message.matrix_size if suspicion.link is None else suspicion.link.num_bytes
    if size < 1 or not 0.0 <= message.at_unix_seconds < _MOST_SECONDS:
        raise RejectedRecordError("value", f"the size of the probe is {size}, at {message.at_unix_seconds}")
    return suspicion


DECODERS: Mapping[str, Decoder[Finding]] = {
    VERDICTS.name: decode_verdict,
    PROFILES.name: decode_profile,
    SUSPICIONS.name: decode_suspicion,
}
