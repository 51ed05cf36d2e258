"""What the telemetry service would make of a simulated run: the same frames, nothing more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenkeel.contracts.columns import CHANNEL, HAS_FLOPS, HAS_INPUT, STAMP
from evenkeel.contracts.frames import Frames, Members, frames_of, members_of
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.ranks.traffic import stamped_indices
from evenkeel.simulator.job.hardware import Hardware, shard_work
from evenkeel.simulator.job.links import ChannelTimes, ChannelUse, Floats
from evenkeel.simulator.job.pipeline_run import RankTimes
from evenkeel.simulator.job.workload import Workload
from evenkeel.telemetry.v2 import batch_pb2 as pb

_KINDS = {
    ChannelUse.ACTIVATION_SENT: pb.CHANNEL_KIND_ACTIVATION_SENT,
    ChannelUse.ACTIVATION_RECEIVED: pb.CHANNEL_KIND_ACTIVATION_RECEIVED,
    ChannelUse.GRADIENT_SENT: pb.CHANNEL_KIND_GRADIENT_SENT,
    ChannelUse.GRADIENT_RECEIVED: pb.CHANNEL_KIND_GRADIENT_RECEIVED,
    ChannelUse.COLLECTIVE: pb.CHANNEL_KIND_COLLECTIVE,
}
_WAITS = ("tensor", "pipeline", "gradient", "vote")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """A node's wall clock against true time: what it is ahead at the run's start, and seconds it gains per second."""

    offset_seconds: float = 0.0
    skew: float = 0.0


def frames(
    *,
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
) -> Iterator[Frames]:
    """One frame per iteration, in order, as a complete and timely job would have them.

    Args:
        model: Costs of the blocks.
        layout: Who holds what.
        hardware: Where the optimizer's seconds come from.
        workload: What the micro-batches were.
        times: What every rank measured.
        devices_per_node: Names nodes and devices.
        epoch: Epoch of all frames.
        first_iteration: Iteration of the first frame.
        started_at_unix_seconds: Wall-clock start of the first iteration.
        node_clocks: By number of the node; nodes without one have a perfect clock.
    """
    members = _members(model, layout, times.ranks, devices_per_node)
    quotas = [layout.micro_batches_of(replica) for replica in members.replica.tolist()]
    of_nodes = [rank // devices_per_node for rank in times.ranks]
    clocks = [node_clocks[node] if node < len(node_clocks) else NodeClock() for node in of_nodes]
    offsets, skews = (np.array([getattr(each, name) for each in clocks]) for name in ("offset_seconds", "skew"))
    traffic = _Traffic(times.traffic, dict(zip(times.ranks, (1.0 + skews).tolist(), strict=True)))
    index = np.concatenate([np.arange(quota.start, quota.stop) for quota in quotas])
    began = np.cumsum([0, *map(len, quotas)])[:-1]
    clock = started_at_unix_seconds
    for i in range(times.wall.shape[0]):
        tokens, squares = workload.tokens[i][index].astype(np.int64), workload.sum_of_squares[i][index]
        end = clock + float(times.wall[i].max())
        yield frames_of(
            members,
            [first_iteration + i],
            epoch=epoch,
            closed_at_unix_seconds=[end],
            flags=HAS_INPUT | np.where(members.forward_flops_per_token > 0, HAS_FLOPS, 0),
            started_at_unix_seconds=clock + offsets + skews * (clock - started_at_unix_seconds),
            wall_seconds=times.wall[i],
            forward_seconds=times.forward[i],
            backward_seconds=times.backward[i],
            optimizer_seconds=hardware.optimizer_seconds,
            **{f"wait_{name}_seconds": getattr(times, f"waiting_{name}")[i] for name in _WAITS},
            tokens=np.add.reduceat(tokens, began),
            sum_of_squares=np.add.reduceat(squares, began),
            num_micro_batches=[len(quota) for quota in quotas],
            num_listed=[len(quota) for quota in quotas],
            listed_index=index,
            listed_tokens=tokens,
            listed_squares=squares,
            listed_kept=np.zeros(len(index)),
            **traffic.columns(times.ranks, i),
        )
        clock = end


def _members(model: ModelSpec, layout: Layout, ranks: tuple[int, ...], devices_per_node: int) -> Members:
    """Each rank's share of the model: the same in every iteration."""
    positions = dict(layout.positions())
    places = [positions[rank] for rank in ranks]
    work = [shard_work(model, layout, at.replica, at.stage, at.shard) for at in places]
    return members_of(
        ranks,
        nodes=[f"node-{rank // devices_per_node}" for rank in ranks],
        devices=[f"gpu-{rank % devices_per_node}" for rank in ranks],
        replica=[at.replica for at in places],
        stage=[at.stage for at in places],
        shard=[at.shard for at in places],
        forward_flops_per_token=[each.flops_per_token for each in work],
        forward_flops_per_squared_length=[each.flops_per_squared_length for each in work],
        backward_multiple=[each.backward_multiple for each in work],
    )


class _Traffic:
    """The channels of each rank, as frames have them."""

    def __init__(self, channels: Sequence[ChannelTimes], clock_rates: Mapping[int, float]) -> None:
        self._by_rank: dict[int, list[_Channel]] = {}
        for channel in channels:
            self._by_rank.setdefault(channel.rank, []).append(_Channel(channel, clock_rates[channel.rank]))

    def columns(self, ranks: Sequence[int], row: int) -> dict[str, list[int]]:
        """What ranks measured in one iteration."""
        columns: dict[str, list[int]] = {column.name: [] for column in (*CHANNEL, *STAMP)}
        for rank in ranks:
            for channel in self._by_rank.get(rank, ()):
                channel.fill(columns, row)
        return columns | {"num_channels": [len(self._by_rank.get(rank, ())) for rank in ranks]}


class _Channel:
    """One channel's columns for all iterations; a clock that runs fast makes everything take longer."""

    def __init__(self, times: ChannelTimes, clock_rate: float) -> None:
        chosen = stamped_indices(len(times.entered))
        num_bytes = np.stack(times.num_bytes, axis=1).astype(np.int64)
        self._told = {
            "channel_kind": _KINDS[times.use],
            "channel_party": times.party,
            "channel_num_members": times.num_members,
            "channel_num_operations": len(times.entered),
            "channel_wait_microseconds": 0,
            "channel_num_stamped": len(chosen),
        }
        self._num_bytes = num_bytes.sum(axis=1).tolist()
        nothing = np.zeros((len(num_bytes), len(chosen)), dtype=np.int64).tolist()
        grouped = times.use is ChannelUse.COLLECTIVE
        self._entered = nothing if grouped else _microseconds([times.entered[k] for k in chosen], clock_rate)
        self._took = _microseconds([times.took[k] for k in chosen], clock_rate) if times.took else nothing
        self._stamped_bytes = num_bytes[:, chosen].tolist() if times.took else nothing

    def fill(self, columns: dict[str, list[int]], row: int) -> None:
        for name, value in self._told.items():
            columns[name].append(value)
        columns["channel_bytes"].append(self._num_bytes[row])
        columns["stamp_entered_microseconds"].extend(self._entered[row])
        columns["stamp_took_microseconds"].extend(self._took[row])
        columns["stamp_bytes"].extend(self._stamped_bytes[row])


def _microseconds(seconds: Sequence[Floats], clock_rate: float) -> list[list[int]]:
    """One row an iteration."""
    rounded: list[list[int]] = np.rint(np.stack(seconds, axis=1) * (1e6 * clock_rate)).astype(np.int64).tolist()
    return rounded
