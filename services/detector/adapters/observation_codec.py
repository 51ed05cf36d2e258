"""Observations from the wire, validated."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from evenkeel.services.common.kafka import ConsumedRecord, RejectedRecordError
from evenkeel.services.common.raw_fields import raw_message_class
from evenkeel.services.detector.adapters.frame_codec import RAW_FRAME, frame_from_raw
from evenkeel.services.detector.adapters.run_codec import RAW_RUN, frames_from_raw
from evenkeel.services.detector.domain.link_suspicion import LinkProbeReport
from evenkeel.services.detector.domain.observation import (
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
    RankProgress,
)
from evenkeel.services.detector.domain.suspicion import ProbeReport
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_EVENT_KINDS = {
    pb.PROCESS_EVENT_KIND_STARTED: ProcessEventKind.STARTED,
    pb.PROCESS_EVENT_KIND_DIED: ProcessEventKind.DIED,
    pb.PROCESS_EVENT_KIND_FINISHED: ProcessEventKind.FINISHED,
    pb.PROCESS_EVENT_KIND_STREAM_BROKEN: ProcessEventKind.STREAM_BROKEN,
    pb.PROCESS_EVENT_KIND_CONNECTION_LOST: ProcessEventKind.CONNECTION_LOST,
    pb.PROCESS_EVENT_KIND_PROBED: ProcessEventKind.PROBED,
}
_RawObservation = raw_message_class(pb.DESCRIPTOR, "Observation", {**RAW_FRAME, "FrameRun": RAW_RUN})
_LARGEST_INT64 = (1 << 63) - 1


class Arrived(NamedTuple):
    """What a record says.

    Attributes:
        observations: At least one, of one job, in their order; more of a run of frames.
        newest_at_seconds: When the newest thing in them reached the telemetry service, Unix seconds.
    """

    observations: Sequence[Observation]
    newest_at_seconds: float


def decode_observations(record: ConsumedRecord) -> Arrived:
    """The observations in a record.

    Raises:
        RejectedRecordError: The record holds none that make sense.
    """
    try:
        message = _RawObservation.FromString(record.value or b"")
    except DecodeError as error:
        raise RejectedRecordError("malformed", f"not an Observation: {error}") from error
    if not message.job_id:
        raise RejectedRecordError("no_job", "the observation names no job")
    if record.key is not None and record.key != message.job_id.encode():
        raise RejectedRecordError("wrong_key", f"key {record.key[:64]!r} is not the job id {message.job_id[:64]!r}")
    if message.sequence + len(message.run.iterations) > _LARGEST_INT64:
        raise RejectedRecordError("out_of_range", f"sequence {message.sequence} is beyond 63 bits")
    match message.WhichOneof("observed"):
        case "frame":
            frame = frame_from_raw(message.job_id, message.sequence, message.frame)
            return Arrived((frame,), message.frame.last_sample_at_unix_seconds)
        case "run":
            return Arrived(*frames_from_raw(message.job_id, message.sequence, message.run))
        case "liveness":
            liveness = liveness_from_proto(message.job_id, message.sequence, message.liveness)
            return Arrived((liveness,), liveness.at_unix_seconds)
        case _:
            raise RejectedRecordError(
                "empty", "the observation observes nothing; is its writer newer than this reader?"
            )


def liveness_from_proto(job_id: str, sequence: int, liveness: pb.Liveness) -> LivenessObservation:
    """A liveness observation.

    Raises:
        RejectedRecordError: An event of no known kind, or a time that is not a number.
    """
    _check_time(liveness.at_unix_seconds)
    event = None
    if liveness.HasField("event"):
        kind = _EVENT_KINDS.get(liveness.event.kind)
        if kind is None:
            raise RejectedRecordError("unknown_event", f"process event of unknown kind {liveness.event.kind}")
        event = ProcessEvent(
            at_unix_seconds=liveness.event.at_unix_seconds,
            kind=kind,
            rank=liveness.event.rank,
            incarnation=liveness.event.incarnation,
            detail=liveness.event.detail,
            node=liveness.event.node,
            device=liveness.event.device,
            probe=_probe(liveness.event) if kind is ProcessEventKind.PROBED else None,
        )
    return LivenessObservation(
        job_id=job_id,
        sequence=sequence,
        at_unix_seconds=liveness.at_unix_seconds,
        event=event,
        progress=tuple(_progress(one) for one in liveness.progress),
        seconds_without_progress=liveness.seconds_without_progress,
    )


def _probe(event: pb.ProcessEvent) -> ProbeReport | LinkProbeReport:
    probe = event.probe
    if not (0.0 < probe.seconds < math.inf and 0.0 < probe.peer_seconds < math.inf):
        raise RejectedRecordError("bad_probe", f"a probe of {probe.seconds} s beside {probe.peer_seconds} s")
    if probe.HasField("link"):
        return LinkProbeReport(
            ends=(event.rank, probe.link.partner_rank),
            incarnations=(event.incarnation, probe.link.partner_incarnation),
            peer_ends=(probe.peer_rank, probe.link.peer_partner_rank),
            num_bytes=probe.link.num_bytes,
            seconds=probe.seconds,
            peer_seconds=probe.peer_seconds,
            iteration=probe.iteration,
        )
    return ProbeReport(
        rank=event.rank,
        incarnation=event.incarnation,
        peer_rank=probe.peer_rank,
        matrix_size=probe.matrix_size,
        seconds=probe.seconds,
        peer_seconds=probe.peer_seconds,
        iteration=probe.iteration,
    )


def _progress(one: pb.RankProgress) -> RankProgress:
    progress = one.progress
    return RankProgress(
        rank=one.rank,
        incarnation=one.incarnation,
        iteration=progress.iteration,
        epoch=progress.epoch,
        operation_count=progress.operation_count,
        operation=progress.operation,
        seconds_in_operation=progress.seconds_in_operation,
        waiting_for=tuple(progress.waiting_for),
        seconds_since_heard=one.seconds_since_heard,
        seconds_since_moved=one.seconds_since_moved,
        at_unix_seconds=progress.at_unix_seconds,
    )


def _check_time(at_unix_seconds: float) -> None:
    if not math.isfinite(at_unix_seconds) or at_unix_seconds < 0:
        raise RejectedRecordError("bad_time", f"{at_unix_seconds} is not a time in Unix seconds")
