"""Synthetic frames as they cross Kafka."""

from typing import Any

import numpy as np

from evenkeel.contracts.columns import HAS_FLOPS, HAS_INPUT, HAS_LOSS
from evenkeel.contracts.frames import Frames, frames_of, members_of, write_frames
from evenkeel.contracts.topics import FRAMES
from evenkeel.services.common.kafka import OutgoingRecord
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.telemetry.v2 import frames_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2
from tests.unit.detector.synthetic import TOKENS

BACKWARD_MULTIPLE = 2.0


def frames_from(frame: FrameObservation, **others: Any) -> Frames:
    """The frame that is looked at so; some columns may be others."""
    counts, passes = frame.num_micro_batches, 1 + BACKWARD_MULTIPLE
    members = members_of(
        frame.ranks.tolist(),
        nodes=frame.nodes,
        devices=frame.devices,
        incarnation=frame.incarnations,
        replica=frame.replicas,
        stage=frame.stages,
        shard=frame.shards,
        forward_flops_per_token=frame.token_flops / (TOKENS * counts * passes),
        forward_flops_per_squared_length=frame.square_flops / (frame.sums_of_squares * passes),
        backward_multiple=[BACKWARD_MULTIPLE] * len(frame),
    )
    columns = {
        "flags": HAS_LOSS | HAS_FLOPS | HAS_INPUT,
        "wall_seconds": frame.wall_seconds,
        "forward_seconds": frame.compute_seconds / 3,
        "backward_seconds": frame.compute_seconds * 2 / 3,
        "tokens": TOKENS * counts,
        "sum_of_squares": frame.sums_of_squares,
        "num_micro_batches": counts,
        "loss": frame.losses,
        "num_listed": counts,
        "listed_index": np.concatenate([np.arange(count) for count in counts]),
        "listed_tokens": np.full(counts.sum(), TOKENS),
        "listed_squares": np.repeat(frame.sums_of_squares / counts, counts),
        "listed_kept": np.zeros(counts.sum()),
    }
    closed_at = [frame.closed_at_unix_seconds]
    return frames_of(
        members, [frame.iteration], epoch=frame.epoch, closed_at_unix_seconds=closed_at, **(columns | others)
    )


def frame_to_proto(frame: FrameObservation, job_id: str, sequence: int, **others: Any) -> pb.Observation:
    message = pb.Observation(job_id=job_id, sequence=sequence)
    write_frames(message.frames, frames_from(frame, **others))
    return message


def death(job_id: str, sequence: int, *, rank: int, at_unix_seconds: float) -> pb.Observation:
    message = pb.Observation(job_id=job_id, sequence=sequence)
    message.liveness.at_unix_seconds = at_unix_seconds
    message.liveness.event.at_unix_seconds = at_unix_seconds
    message.liveness.event.kind = process_pb2.PROCESS_EVENT_KIND_DIED
    message.liveness.event.rank = rank
    return message


def to_record(message: pb.Observation) -> OutgoingRecord:
    return OutgoingRecord(topic=FRAMES.name, key=message.job_id.encode(), value=message.SerializeToString())
