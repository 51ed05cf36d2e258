"""What the telemetry service would publish for a simulated run: the same protobuf messages, nothing more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.traffic import stamped_indices
from evenkeel.simulator.hardware import Hardware, shard_work
from evenkeel.simulator.links import ChannelTimes, ChannelUse, Floats
from evenkeel.simulator.pipeline_run import RankTimes
from evenkeel.simulator.workload import Workload
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_KINDS = {
    ChannelUse.ACTIVATION_SENT: pb.CHANNEL_KIND_ACTIVATION_SENT,
    ChannelUse.ACTIVATION_RECEIVED: pb.CHANNEL_KIND_ACTIVATION_RECEIVED,
    ChannelUse.GRADIENT_SENT: pb.CHANNEL_KIND_GRADIENT_SENT,
    ChannelUse.GRADIENT_RECEIVED: pb.CHANNEL_KIND_GRADIENT_RECEIVED,
    ChannelUse.COLLECTIVE: pb.CHANNEL_KIND_COLLECTIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """A node's wall clock against true time: what it is ahead at the run's start, and seconds it gains per second."""

    offset_seconds: float = 0.0
    skew: float = 0.0


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
    node_clocks: Sequence[NodeClock] = (),
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
        node_clocks: By number of the node; nodes without one have a perfect clock.
    """
    rates = {rank: 1.0 + _clock_of(rank, node_clocks, devices_per_node).skew for rank in times.ranks}
    traffic = _Traffic(times.traffic, rates)
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
            node, device = divmod(rank, devices_per_node)
            node_clock = _clock_of(rank, node_clocks, devices_per_node)
            ahead = node_clock.offset_seconds + node_clock.skew * (clock - started_at_unix_seconds)
            sample = pb.Sample(
                iteration=first_iteration + i,
                epoch=epoch,
                started_at_unix_seconds=clock + ahead,
                micro_batches=micro_batches[quota.start : quota.stop],
                position=position,
            )
            _measure(sample, times, i, index, hardware.optimizer_seconds)
            traffic.fill(sample, rank, i)
            frame.entries.append(pb.FrameEntry(rank=rank, node=f"node-{node}", device=f"gpu-{device}", sample=sample))
        yield pb.Observation(job_id=job_id, sequence=first_iteration + i, frame=frame)
        clock = end


def _clock_of(rank: int, clocks: Sequence[NodeClock], devices_per_node: int) -> NodeClock:
    node = rank // devices_per_node
    return clocks[node] if node < len(clocks) else NodeClock()


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
    sample.waiting.vote = times.waiting_vote[row, column]


class _Traffic:
    """The channels of each rank, as the wire has them."""

    def __init__(self, channels: Sequence[ChannelTimes], clock_rates: Mapping[int, float]) -> None:
        self._by_rank: dict[int, list[_Channel]] = {}
        for channel in channels:
            self._by_rank.setdefault(channel.rank, []).append(_Channel(channel, clock_rates[channel.rank]))

    def fill(self, sample: pb.Sample, rank: int, row: int) -> None:
        """Adds what a rank measured in one iteration."""
        for channel in self._by_rank.get(rank, ()):
            channel.fill(sample.traffic, row)


class _Channel:
    """One channel's columns for all iterations; a clock that runs fast makes everything take longer."""

    def __init__(self, times: ChannelTimes, clock_rate: float) -> None:
        self._kind, self._party, self._num_members = _KINDS[times.use], times.party, times.num_members
        self._num_operations = len(times.entered)
        chosen = stamped_indices(self._num_operations)
        num_bytes = np.stack(times.num_bytes, axis=1).astype(np.int64)
        self._num_bytes = num_bytes.sum(axis=1).tolist()
        self._stamped_bytes = num_bytes[:, chosen].tolist() if times.took else None
        grouped = times.use is ChannelUse.COLLECTIVE
        self._entered = None if grouped else _microseconds([times.entered[k] for k in chosen], clock_rate)
        self._took = _microseconds([times.took[k] for k in chosen], clock_rate) if times.took else None
        self._num_stamped = len(chosen)

    def fill(self, traffic: pb.Traffic, row: int) -> None:
        traffic.kinds.append(self._kind)
        traffic.parties.append(self._party)
        traffic.num_members.append(self._num_members)
        traffic.num_operations.append(self._num_operations)
        traffic.num_bytes.append(self._num_bytes[row])
        traffic.num_stamped.append(self._num_stamped)
        if self._entered is not None:
            traffic.entered_microseconds.extend(self._entered[row])
        if self._took is not None and self._stamped_bytes is not None:
            traffic.took_microseconds.extend(self._took[row])
            traffic.stamped_bytes.extend(self._stamped_bytes[row])


def _microseconds(seconds: Sequence[Floats], clock_rate: float) -> list[list[int]]:
    """One row an iteration."""
    rounded: list[list[int]] = np.rint(np.stack(seconds, axis=1) * (1e6 * clock_rate)).astype(np.int64).tolist()
    return rounded
