"""Synthetic frames as they cross Kafka."""

from evenkeel.contracts.topics import OBSERVATIONS
from evenkeel.services.common.kafka import OutgoingRecord
from evenkeel.services.detector.domain.observation import FrameObservation
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from tests.unit.detector.synthetic import TOKENS

BACKWARD_MULTIPLE = 2.0


def frame_to_proto(frame: FrameObservation, job_id: str, sequence: int) -> pb.Observation:
    message = pb.Observation(job_id=job_id, sequence=sequence)
    message.frame.iteration = frame.iteration
    message.frame.epoch = frame.epoch
    message.frame.closed_at_unix_seconds = frame.closed_at_unix_seconds
    message.frame.last_sample_at_unix_seconds = frame.closed_at_unix_seconds
    for entry, rank in enumerate(frame.ranks.tolist()):
        count = int(frame.num_micro_batches[entry])
        squares = float(frame.sums_of_squares[entry])
        passes = 1 + BACKWARD_MULTIPLE
        sample = pb.Sample(
            iteration=frame.iteration,
            epoch=frame.epoch,
            wall_seconds=float(frame.wall_seconds[entry]),
            compute=pb.ComputeSeconds(
                forward=float(frame.compute_seconds[entry]) / 3, backward=float(frame.compute_seconds[entry]) * 2 / 3
            ),
            micro_batches=[
                pb.MicroBatch(index=index, tokens=TOKENS, sum_of_squares=squares / count) for index in range(count)
            ],
            position=pb.Position(
                replica=int(frame.replicas[entry]),
                stage=int(frame.stages[entry]),
                shard=int(frame.shards[entry]),
                forward_flops_per_token=float(frame.token_flops[entry]) / (TOKENS * count * passes),
                forward_flops_per_squared_length=float(frame.square_flops[entry]) / (squares * passes),
                backward_multiple=BACKWARD_MULTIPLE,
            ),
            loss=float(frame.losses[entry]),
        )
        message.frame.entries.add(
            rank=rank,
            incarnation=int(frame.incarnations[entry]),
            node=frame.nodes[entry],
            device=frame.devices[entry],
            sample=sample,
        )
    return message


def death(job_id: str, sequence: int, *, rank: int, at_unix_seconds: float) -> pb.Observation:
    message = pb.Observation(job_id=job_id, sequence=sequence)
    message.liveness.at_unix_seconds = at_unix_seconds
    message.liveness.event.at_unix_seconds = at_unix_seconds
    message.liveness.event.kind = pb.PROCESS_EVENT_KIND_DIED
    message.liveness.event.rank = rank
    return message


def to_record(message: pb.Observation) -> OutgoingRecord:
    return OutgoingRecord(topic=OBSERVATIONS.name, key=message.job_id.encode(), value=message.SerializeToString())
