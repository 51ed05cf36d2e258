"""What the telemetry service would publish for a simulated run: the same protobuf messages, nothing more."""

from collections.abc import Iterator

from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from layouts.layout import Layout
from layouts.model import ModelSpec
from simulator.pipeline_run import Hardware, RankTimes, shard_work
from simulator.workload import Workload


def observations(
    *,
    job_id: str,
    model: ModelSpec,
    layout: Layout,
    hardware: Hardware,
    workload: Workload,
    times: RankTimes,
    devices_per_node: int = 8,
    epoch: int = 0,
    first_iteration: int = 0,
    started_at_unix_seconds: float = 1_700_000_000.0,
) -> Iterator[pb.Observation]:
    """One frame per iteration, in order, as a complete and timely job would have them.

    Args:
        job_id: Job named in every observation.
        model: Costs of the blocks.
        layout: Who holds what.
        hardware: Where the optimizer's seconds come from.
        workload: What the micro-batches were.
        times: What every rank measured.
        devices_per_node: Names nodes and devices.
        epoch: Epoch of all frames.
        first_iteration: Iteration of the first frame; also its sequence number.
        started_at_unix_seconds: Wall-clock start of the first iteration.
    """
    places = _places(model, layout, times.ranks)
    clock = started_at_unix_seconds
    for i in range(times.wall.shape[0]):
        micro_batches = [
            pb.MicroBatch(index=m, tokens=int(tokens), sum_of_squares=squares)
            for m, (tokens, squares) in enumerate(
                zip(workload.tokens[i].tolist(), workload.sum_of_squares[i].tolist(), strict=True)
            )
        ]
        end = clock + float(times.wall[i].max())
        frame = pb.Frame(
            iteration=first_iteration + i,
            epoch=epoch,
            closed_at_unix_seconds=end,
            last_sample_at_unix_seconds=end,
        )
        for index, (rank, position, quota) in enumerate(places):
            sample = pb.Sample(
                iteration=first_iteration + i,
                epoch=epoch,
                started_at_unix_seconds=clock,
                micro_batches=micro_batches[quota.start : quota.stop],
                position=position,
            )
            _measure(sample, times, i, index, hardware.optimizer_seconds)
            node, device = divmod(rank, devices_per_node)
            frame.entries.append(pb.FrameEntry(rank=rank, node=f"node-{node}", device=f"gpu-{device}", sample=sample))
        yield pb.Observation(job_id=job_id, sequence=first_iteration + i, frame=frame)
        clock = end


def _places(model: ModelSpec, layout: Layout, ranks: tuple[int, ...]) -> list[tuple[int, pb.Position, range]]:
    """Each rank's share of the model and its micro-batches: the same in every iteration."""
    positions = dict(layout.positions())
    places = []
    for rank in ranks:
        at = positions[rank]
        work = shard_work(model, layout, at.replica, at.stage, at.shard)
        position = pb.Position(
            replica=at.replica,
            stage=at.stage,
            shard=at.shard,
            forward_flops_per_token=work.flops_per_token,
            forward_flops_per_squared_length=work.flops_per_squared_length,
            backward_multiple=work.backward_multiple,
        )
        places.append((rank, position, layout.micro_batches_of(at.replica)))
    return places


def _measure(sample: pb.Sample, times: RankTimes, row: int, column: int, optimizer_seconds: float) -> None:
    """Fills in what one rank measured in one iteration."""
    sample.wall_seconds = times.wall[row, column]
    sample.compute.forward = times.forward[row, column]
    sample.compute.backward = times.backward[row, column]
    sample.compute.optimizer = optimizer_seconds
    sample.waiting.tensor = times.waiting_tensor[row, column]
    sample.waiting.pipeline = times.waiting_pipeline[row, column]
    sample.waiting.gradient = times.waiting_gradient[row, column]
