"""Observations from the wire, validated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import islice
from typing import NamedTuple

from google.protobuf.message import DecodeError

from evenkeel.contracts.frames import read_frames
from evenkeel.services.common.kafka import ConsumedRecord, RejectedRecordError
from evenkeel.services.detector.adapters.frame_reader import observations_of
from evenkeel.services.detector.domain.frames.observation import (
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
    RankProgress,
)
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.telemetry.v2 import frames_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2

_EVENT_KINDS = {
    process_pb2.ProcessEventKind.Value(f"PROCESS_EVENT_KIND_{kind.name}"): kind for kind in ProcessEventKind
}
# Of a picture's columns, those that rules look at.
_TOLD = tuple(each.name for each in fields(RankProgress) if each.name != "waiting_for")
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
        message = pb.Observation.FromString(record.value or b"")
    except DecodeError as error:
        raise RejectedRecordError("malformed", f"not an Observation: {error}") from error
    if not message.job_id:
        raise RejectedRecordError("no_job", "the observation names no job")
    if record.key is not None and record.key != message.job_id.encode():
        raise RejectedRecordError("wrong_key", f"key {record.key[:64]!r} is not the job id {message.job_id[:64]!r}")
    if message.sequence + len(message.frames.iteration) > _LARGEST_INT64:
        raise RejectedRecordError("out_of_range", f"sequence {message.sequence} is beyond 63 bits")
    match message.WhichOneof("observed"):
        case "frames":
            return _frames(message)
        case "liveness":
            liveness = liveness_from_proto(message.job_id, message.sequence, message.liveness)
            return Arrived((liveness,), liveness.at_unix_seconds)
        case _:
            raise RejectedRecordError(
                "empty", "the observation observes nothing; is its writer newer than this reader?"
            )


def _frames(message: pb.Observation) -> Arrived:
    try:
        frames = read_frames(message.frames)
    except ValueError as error:
        raise RejectedRecordError("bad_columns", str(error)) from error
    for at_unix_seconds in frames.closed_at_unix_seconds.tolist():
        _check_time(at_unix_seconds)
    if frames.members.rank[0] < 0:
        raise RejectedRecordError("bad_ranks", f"frames of rank {frames.members.rank[0]}")
    observations = tuple(observations_of(message.job_id, message.sequence, frames))
    return Arrived(observations, float(frames.last_heard_at_unix_seconds.max()))


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
        progress=tuple(_progress(liveness)),
    )


def _probe(event: process_pb2.ProcessEvent) -> ProbeReport:
    probe, link = event.probe, event.probe.link
    if not (0.0 < probe.seconds < math.inf and 0.0 < probe.peer_seconds < math.inf):
        raise RejectedRecordError("bad_probe", f"a probe of {probe.seconds} s beside {probe.peer_seconds} s")
    of_link = probe.HasField("link")
    return ProbeReport(
        ranks=(event.rank, link.partner_rank) if of_link else (event.rank,),
        incarnations=(event.incarnation, link.partner_incarnation) if of_link else (event.incarnation,),
        peers=(probe.peer_rank, link.peer_partner_rank) if of_link else (probe.peer_rank,),
        size=link.num_bytes if of_link else probe.matrix_size,
        seconds=probe.seconds,
        peer_seconds=probe.peer_seconds,
        iteration=probe.iteration,
    )


def _progress(liveness: pb.Liveness) -> Iterator[RankProgress]:
    columns = {column.name: getattr(liveness, column.name) for column in pb.Liveness.DESCRIPTOR.fields[3:]}
    waiting_for = iter(columns.pop("waiting_for"))
    if len({len(values) for values in columns.values()}) != 1 or sum(liveness.num_waiting_for) != len(
        liveness.waiting_for
    ):
        raise RejectedRecordError("bad_columns", "columns of a picture are not all as long as its ranks")
    told = [columns[name] for name in _TOLD]
    for count, *values in zip(columns["num_waiting_for"], *told, strict=True):
        yield RankProgress(waiting_for=tuple(islice(waiting_for, count)), **dict(zip(_TOLD, values, strict=True)))


def _check_time(at_unix_seconds: float) -> None:
    if not math.isfinite(at_unix_seconds) or at_unix_seconds < 0:
        raise RejectedRecordError("bad_time", f"{at_unix_seconds} is not a time in Unix seconds")
