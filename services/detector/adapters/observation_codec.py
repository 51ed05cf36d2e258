"""Observations from the wire: validated, and frames as arrays."""

import math
from collections.abc import Sequence

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from services.common.kafka import ConsumedRecord, RejectedRecordError
from services.detector.domain.observation import (
    FrameObservation,
    LivenessObservation,
    Observation,
    ProcessEvent,
    ProcessEventKind,
    RankProgress,
)

_EVENT_KINDS = {
    pb.PROCESS_EVENT_KIND_STARTED: ProcessEventKind.STARTED,
    pb.PROCESS_EVENT_KIND_DIED: ProcessEventKind.DIED,
    pb.PROCESS_EVENT_KIND_FINISHED: ProcessEventKind.FINISHED,
    pb.PROCESS_EVENT_KIND_STREAM_BROKEN: ProcessEventKind.STREAM_BROKEN,
    pb.PROCESS_EVENT_KIND_CONNECTION_LOST: ProcessEventKind.CONNECTION_LOST,
}
_LARGEST_INT64 = (1 << 63) - 1
# Beyond any seconds or operations there are, and far from where their products overflow.
_LARGEST_NUMBER = 1e40


def decode_observation(record: ConsumedRecord) -> tuple[Observation, float]:
    """The observation in a record, and when the newest thing in it reached the telemetry service, Unix seconds.

    Raises:
        RejectedRecordError: The record is not an observation that makes sense.
    """
    try:
        message = pb.Observation.FromString(record.value or b"")
    except DecodeError as error:
        raise RejectedRecordError("malformed", f"not an Observation: {error}") from error
    if not message.job_id:
        raise RejectedRecordError("no_job", "the observation names no job")
    if record.key is not None and record.key != message.job_id.encode():
        raise RejectedRecordError("wrong_key", f"key {record.key[:64]!r} is not the job id {message.job_id[:64]!r}")
    if message.sequence > _LARGEST_INT64:
        raise RejectedRecordError("out_of_range", f"sequence {message.sequence} is beyond 63 bits")
    match message.WhichOneof("observed"):
        case "frame":
            frame = frame_from_proto(message.job_id, message.sequence, message.frame)
            return frame, message.frame.last_sample_at_unix_seconds
        case "liveness":
            liveness = liveness_from_proto(message.job_id, message.sequence, message.liveness)
            return liveness, liveness.at_unix_seconds
        case _:
            raise RejectedRecordError(
                "empty", "the observation observes nothing; is its writer newer than this reader?"
            )


def frame_from_proto(job_id: str, sequence: int, frame: pb.Frame) -> FrameObservation:
    """A frame as arrays.

    Raises:
        RejectedRecordError: A rank appears twice, or a time is not a number.
    """
    _check_time(frame.closed_at_unix_seconds)
    entries = sorted(frame.entries, key=lambda entry: entry.rank)
    ranks = [entry.rank for entry in entries]
    if len(set(ranks)) != len(ranks) or (ranks and ranks[0] < 0):
        raise RejectedRecordError("bad_ranks", f"ranks of frame {frame.iteration} are negative or appear twice")
    samples = [entry.sample for entry in entries]
    numbers = np.array([_numbers(sample) for sample in samples], dtype=np.float64).reshape(len(samples), 14)
    work = np.array([_work(sample) for sample in samples], dtype=np.float64).reshape(len(samples), 7)
    # One rank's nonsense must not spoil its frame: what cannot be a measurement is none.
    measured = numbers[:, :7]
    measured[~((measured >= 0) & (measured < _LARGEST_NUMBER))] = np.nan
    work[~(np.abs(work) < _LARGEST_NUMBER).all(axis=1)] = 0.0
    return FrameObservation(
        job_id=job_id,
        sequence=sequence,
        iteration=frame.iteration,
        epoch=frame.epoch,
        closed_at_unix_seconds=frame.closed_at_unix_seconds,
        missing_ranks=tuple(frame.missing_ranks),
        ranks=np.array(ranks, dtype=np.int64),
        incarnations=np.array([entry.incarnation for entry in entries], dtype=np.int64),
        nodes=tuple(entry.node for entry in entries),
        devices=tuple(entry.device for entry in entries),
        epochs=np.array([sample.epoch for sample in samples], dtype=np.int64),
        planned=np.array([sample.mark != pb.MARK_UNSPECIFIED for sample in samples], dtype=np.bool_),
        compute_seconds=numbers[:, 0],
        other_seconds=numbers[:, 1],
        wall_seconds=numbers[:, 2],
        wait_seconds=numbers[:, 3:7],
        replicas=numbers[:, 7].astype(np.int64),
        stages=numbers[:, 8].astype(np.int64),
        shards=numbers[:, 9].astype(np.int64),
        losses=numbers[:, 10],
        has_loss=numbers[:, 11] > 0,
        gradient_norms=numbers[:, 12],
        has_gradient_norm=numbers[:, 13] > 0,
        token_flops=work[:, 0],
        square_flops=work[:, 1],
        has_flops=work[:, 2] > 0,
        num_micro_batches=work[:, 3].astype(np.int64),
        tokens=work[:, 4],
        sums_of_squares=work[:, 5],
        work_keys=work[:, 6],
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
        )
    return LivenessObservation(
        job_id=job_id,
        sequence=sequence,
        at_unix_seconds=liveness.at_unix_seconds,
        event=event,
        progress=tuple(_progress(one) for one in liveness.progress),
        seconds_without_progress=liveness.seconds_without_progress,
    )


def _numbers(sample: pb.Sample) -> Sequence[float]:
    compute, waiting, position = sample.compute, sample.waiting, sample.position
    has_loss, has_norm = sample.HasField("loss"), sample.HasField("gradient_norm")
    return (
        compute.forward + compute.backward,
        compute.optimizer + compute.data,
        sample.wall_seconds,
        waiting.tensor,
        waiting.pipeline,
        waiting.gradient,
        waiting.vote,
        position.replica,
        position.stage,
        position.shard,
        sample.loss if has_loss else math.nan,
        has_loss,
        sample.gradient_norm if has_norm else math.nan,
        has_norm,
    )


def _work(sample: pb.Sample) -> Sequence[float]:
    """Token flops, square flops, whether they are known, micro-batches, tokens, sum of squares, key of the share."""
    position = sample.position
    tokens = squares = 0.0
    for micro_batch in sample.micro_batches:
        tokens += micro_batch.tokens
        squares += micro_batch.sum_of_squares
    count = len(sample.micro_batches)
    passes = 1.0 + position.backward_multiple
    per_token, per_square = position.forward_flops_per_token, position.forward_flops_per_squared_length
    if per_token > 0 or per_square > 0:
        key = passes * (per_token + math.pi * per_square)
        return per_token * tokens * passes, per_square * squares * passes, 1.0, count, tokens, squares, key
    # A loop that does not say what its model costs: tokens stand in for flops, or each iteration is like any other.
    key = -1.0 - position.stage
    if tokens > 0:
        return tokens, 0.0, 0.0, count, tokens, squares, key
    return 1.0, 0.0, 0.0, max(count, 1), tokens, squares, key


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
