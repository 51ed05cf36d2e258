"""Frames as their readers see them: each entry a sample again."""

from collections.abc import Sequence

from evenkeel.services.telemetry.adapters.frame_writer import frame_observation
from evenkeel.services.telemetry.domain.observed import ArrivedSample, ClosedFrame
from evenkeel.telemetry.v1 import telemetry_pb2 as pb


def frame_of(samples: Sequence[ArrivedSample]) -> pb.Frame:
    """The frame that the service writes of samples."""
    closed = ClosedFrame(
        epoch=0,
        iteration=0,
        entries=tuple(samples),
        missing_ranks=(),
        closed_at_seconds=0.0,
        last_sample_at_seconds=0.0,
    )
    return pb.Observation.FromString(frame_observation("job", 0, closed)).frame


def sample_in(columns: pb.FrameColumns, entry: int) -> pb.Sample:
    """The sample that one entry of the columns describes, without its iteration and epoch."""

    def value(name: str) -> float:
        column = getattr(columns, name)
        return column[entry] if column else 0

    sample = pb.Sample(
        started_at_unix_seconds=value("started_at_unix_seconds"),
        wall_seconds=value("wall_seconds"),
        compute=pb.ComputeSeconds(
            **{name: value(f"{name}_seconds") for name in ("forward", "backward", "optimizer", "data")}
        ),
        waiting=pb.WaitingSeconds(
            **{name: value(f"{name}_wait_seconds") for name in ("tensor", "pipeline", "gradient", "vote")}
        ),
        position=pb.Position(
            replica=int(value("replicas")),
            stage=int(value("stages")),
            shard=int(value("shards")),
            forward_flops_per_token=value("forward_flops_per_token"),
            forward_flops_per_squared_length=value("forward_flops_per_squared_length"),
            backward_multiple=value("backward_multiple"),
        ),
        peak_memory_bytes=int(value("peak_memory_bytes")),
        mark=int(value("marks")),  # type: ignore[arg-type]
        loss=value("losses") if value("has_loss") else None,
        gradient_norm=value("gradient_norms") if value("has_gradient_norm") else None,
    )
    which = int(value("workload_of"))
    first = sum(columns.workload_sizes[:which])
    for place in range(first, first + columns.workload_sizes[which]):
        sample.micro_batches.add(
            index=columns.micro_batch_indexes[place] if columns.micro_batch_indexes else 0,
            tokens=columns.micro_batch_tokens[place] if columns.micro_batch_tokens else 0,
            sum_of_squares=columns.micro_batch_sums_of_squares[place] if columns.micro_batch_sums_of_squares else 0.0,
        )
    if columns.traffic and columns.traffic[entry].ByteSize():
        sample.traffic.CopyFrom(columns.traffic[entry])
    return sample


def without_key(sample: pb.Sample) -> pb.Sample:
    """What a frame keeps of a sample."""
    copied = pb.Sample.FromString(sample.SerializeToString())
    copied.iteration = copied.epoch = 0
    del copied.kept_micro_batches[:]  # looked at, and in no frame
    for name in ("compute", "waiting", "position"):  # left out or empty is the same
        getattr(copied, name).SetInParent()
    if not copied.traffic.ByteSize():
        copied.ClearField("traffic")
    return copied
