"""Executes every operation of a pipeline-parallel job, many iterations at once.

Each stage works through its program from :mod:`layouts.schedules`; a tensor-parallel stage moves at its slowest shard;
a transfer begins when both its ends are there, as with NCCL and gloo; replicas meet in the gradient exchange and
everybody in the step vote. Iterations start together, as the vote makes them, so all of them are computed side by
side with numpy; so are replicas that do the same work, where nothing is told of links (see :mod:`simulator.plain_run`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layouts.cut import cut
from layouts.instructions import Instruction, Op
from layouts.layout import Layout
from layouts.model import ModelSpec
from layouts.schedules import program_of
from layouts.traffic import group_number
from simulator.links import ChannelTimes, ChannelUse, LinkConditions, TrafficRecorder
from simulator.plain_run import PlainStage, play
from simulator.workload import Workload

Floats = NDArray[np.float64]

_RECEIVES = {
    Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1, ChannelUse.ACTIVATION_SENT, ChannelUse.ACTIVATION_RECEIVED),
    Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1, ChannelUse.GRADIENT_SENT, ChannelUse.GRADIENT_RECEIVED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the job runs on.

    Attributes:
        seconds_per_flop: Of a healthy device.
        tensor_seconds: One tensor-parallel collective pass of one micro-batch through one block.
        transfer_seconds: One activation over one stage border.
        exchange_seconds: The gradient exchange.
        optimizer_seconds: The optimizer step.
    """

    seconds_per_flop: float
    tensor_seconds: float = 0.0
    transfer_seconds: float = 0.0
    exchange_seconds: float = 0.0
    optimizer_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """What each rank measured; every array is ``[iterations, ranks]``, seconds; ranks ascending as in the layout.

    ``traffic`` holds the operations with others, where the run was given link conditions.
    """

    ranks: tuple[int, ...]
    forward: Floats
    backward: Floats
    waiting_tensor: Floats
    waiting_pipeline: Floats
    waiting_gradient: Floats
    waiting_vote: Floats
    wall: Floats
    traffic: tuple[ChannelTimes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWork:
    """Forward operations of one shard of one stage, per token and per squared length."""

    flops_per_token: float
    flops_per_squared_length: float
    backward_multiple: float


def shard_work(model: ModelSpec, layout: Layout, replica: int, stage: int, shard: int) -> ShardWork:
    """What one rank computes, with widths rounded as the engine rounds them."""
    held = layout.replicas[replica].stages[stage]
    per_token = per_square = backward = 0.0
    for block in model.blocks[held.first_block : held.stop_block]:
        fraction = 1.0
        if block.max_width > 1:
            borders = cut(block.max_width, 1, held.shares)
            fraction = (borders[shard + 1] - borders[shard]) / block.max_width
        per_token += block.forward_flops_per_token * fraction
        per_square += block.forward_flops_per_squared_length * fraction
        backward += block.backward_multiple * (block.forward_flops_per_token * fraction)
    return ShardWork(
        flops_per_token=per_token,
        flops_per_squared_length=per_square,
        backward_multiple=backward / per_token if per_token else 2.0,
    )


class _ReplicaRun:
    """One replica's programs, played for all iterations at once."""

    def __init__(
        self,
        layout: Layout,
        replica: int,
        model: ModelSpec,
        hardware: Hardware,
        workload: Workload,
        slowdown: Floats,
        links: LinkConditions | None,
        traffic: TrafficRecorder,
        column: dict[int, int],
    ) -> None:
        self._hardware, self._workload = hardware, workload
        self._slowdown, self._links, self._traffic = slowdown, links, traffic
        stages = layout.replicas[replica].stages
        self._ranks = [stage.ranks for stage in stages]
        self.columns = [[column[rank] for rank in stage.ranks] for stage in stages]
        self._num_blocks = [stage.num_blocks for stage in stages]
        self._programs = [program_of(layout, replica, s) for s in range(len(stages))]
        self._works = [
            [shard_work(model, layout, replica, s, t) for t in range(len(stage.ranks))]
            for s, stage in enumerate(stages)
        ]
        self.clocks = [np.zeros((workload.tokens.shape[0], len(stage.ranks))) for stage in stages]
        self._sent: dict[tuple[Op, int, int], Floats] = {}

    def run(self, into: dict[str, Floats]) -> None:
        """Plays every program to its end and adds each rank's seconds into the arrays of ``into``."""
        positions = [0] * len(self._programs)
        while any(position < len(program) for position, program in zip(positions, self._programs, strict=True)):
            for s, program in enumerate(self._programs):
                while positions[s] < len(program) and self._play(s, program[positions[s]], into):
                    positions[s] += 1

    def _play(self, s: int, one: Instruction, into: dict[str, Floats]) -> bool:
        """Plays one instruction; False when it waits for a send that has not been played yet."""
        if one.op in _RECEIVES:
            return self._receive(s, one, into)
        if one.op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT):
            self._sent[one.op, s, one.micro_batch] = self.clocks[s].copy()
        elif one.op in (Op.FORWARD, Op.BACKWARD):
            columns, backward = self.columns[s], one.op is Op.BACKWARD
            own = self._compute_seconds(s, one.micro_batch, backward=backward)
            entered = self.clocks[s] + own
            ended = entered.max(axis=1) + self._collective_seconds(s, one.micro_batch, entered, backward=backward)
            into["backward" if backward else "forward"][:, columns] += own
            into["waiting_tensor"][:, columns] += ended[:, None] - entered
            self.clocks[s] = np.repeat(ended[:, None], len(columns), axis=1)
        return True

    def _receive(self, s: int, one: Instruction, into: dict[str, Floats]) -> bool:
        send, offset, sent_use, received_use = _RECEIVES[one.op]
        sent_at = self._sent.get((send, s + offset, one.micro_batch))
        if sent_at is None:
            return False
        num_bytes = self._activation_bytes(one.micro_batch)
        for t, receiver in enumerate(self._ranks[s]):
            from_shard = t % len(self._ranks[s + offset])
            sender, sent = self._ranks[s + offset][from_shard], sent_at[:, from_shard]
            entered = self.clocks[s][:, t].copy()
            seconds = self._hardware.transfer_seconds * self._factors((sender, receiver))
            took = np.maximum(sent, entered) + seconds - entered
            into["waiting_pipeline"][:, self.columns[s][t]] += took
            self.clocks[s][:, t] += took
            if self._links is not None:
                self._traffic.note(sender, sent_use, receiver, num_bytes=num_bytes, entered=sent)
                self._traffic.note(receiver, received_use, sender, num_bytes=num_bytes, entered=entered, took=took)
        return True

    def _collective_seconds(self, s: int, micro_batch: int, entered: Floats, *, backward: bool) -> Floats | float:
        """Seconds of a pass's collectives, taken as one after the pass; every shard notes what it saw of it."""
        ranks = self._ranks[s]
        if len(ranks) == 1:
            return 0.0
        seconds = self._hardware.tensor_seconds * self._num_blocks[s] * (1 + backward) * self._factors(ranks)
        if self._links is not None:
            ended = entered.max(axis=1) + seconds
            num_bytes = self._activation_bytes(micro_batch) * self._num_blocks[s] * (1 + backward)
            for t, rank in enumerate(ranks):
                self._traffic.note(
                    rank,
                    ChannelUse.COLLECTIVE,
                    group_number(ranks),
                    num_bytes=num_bytes,
                    entered=entered[:, t],
                    took=ended - entered[:, t],
                    num_members=len(ranks),
                )
        return seconds

    def _compute_seconds(self, s: int, micro_batch: int, *, backward: bool) -> Floats:
        """Each shard's compute of one micro-batch, ``[iterations, shards]``."""
        tokens = self._workload.tokens[:, micro_batch]
        squares = self._workload.sum_of_squares[:, micro_batch]
        flops = np.stack(
            [
                (work.flops_per_token * tokens + work.flops_per_squared_length * squares)
                * (work.backward_multiple if backward else 1.0)
                for work in self._works[s]
            ],
            axis=1,
        )
        return np.asarray(flops * self._hardware.seconds_per_flop * self._slowdown[:, self.columns[s]])

    def _factors(self, ranks: tuple[int, ...]) -> Floats | float:
        return 1.0 if self._links is None else self._links.factors(ranks)

    def _activation_bytes(self, micro_batch: int) -> Floats:
        bytes_per_token = 0 if self._links is None else self._links.bytes_per_token
        return np.asarray(self._workload.tokens[:, micro_batch] * bytes_per_token)


def run_pipeline(
    *,
    model: ModelSpec,
    layout: Layout,
    hardware: Hardware,
    workload: Workload,
    slowdown: Floats,
    links: LinkConditions | None = None,
) -> RankTimes:
    """Runs all iterations and returns what every rank would have measured.

    Args:
        model: Costs of the blocks.
        layout: Who holds what.
        hardware: Healthy speeds.
        workload: Micro-batches, ``[iterations, micro_batches]`` with the layout's number of micro-batches.
        slowdown: Compute time factor of each rank, ``[iterations, ranks]``, ranks ascending; noise included.
        links: Noise and faults of the links; None = every transfer takes what the hardware says, and none is told.

    Raises:
        ValueError: ``slowdown`` does not fit the run.
    """
    ranks = layout.ranks
    shape = (workload.tokens.shape[0], len(ranks))
    if slowdown.shape != shape:
        raise ValueError(f"slowdown has shape {slowdown.shape}, expected [iterations, ranks] = {shape}")
    column = {rank: index for index, rank in enumerate(ranks)}
    traffic = TrafficRecorder()
    into = {name: np.zeros(shape) for name in ("forward", "backward", "waiting_tensor", "waiting_pipeline")}
    ready = np.zeros(shape)
    if links is None:
        for alike in _alike(layout):
            _run_alike(layout, alike, model, hardware, workload, slowdown, column, into, ready)
    else:
        for d in range(len(layout.replicas)):
            replica = _ReplicaRun(layout, d, model, hardware, workload, slowdown, links, traffic, column)
            replica.run(into)
            for s, columns in enumerate(replica.columns):
                ready[:, columns] = replica.clocks[s]
    exchanged = _exchange(layout, hardware, ready, links, traffic, column)
    # The step vote ends when the last rank arrives.
    last = exchanged.max(axis=1, keepdims=True)
    return RankTimes(
        ranks=ranks,
        waiting_gradient=exchanged - ready,
        waiting_vote=last - exchanged,
        wall=np.repeat(last + hardware.optimizer_seconds, len(ranks), axis=1),
        traffic=traffic.channels,
        **into,
    )


def _alike(layout: Layout) -> list[list[int]]:
    """Replicas in groups that do the same work: equal stages, equal quotas."""
    groups: dict[object, list[int]] = {}
    for d, replica in enumerate(layout.replicas):
        stages = tuple((stage.first_block, stage.stop_block, stage.shares) for stage in replica.stages)
        groups.setdefault((stages, replica.num_micro_batches), []).append(d)
    return list(groups.values())


def _run_alike(
    layout: Layout,
    alike: Sequence[int],
    model: ModelSpec,
    hardware: Hardware,
    workload: Workload,
    slowdown: Floats,
    column: dict[int, int],
    into: dict[str, Floats],
    ready: Floats,
) -> None:
    """Plays replicas that do the same work and fills in what their ranks measured."""
    quota = layout.replicas[alike[0]].num_micro_batches
    dues = [layout.micro_batches_of(d) for d in alike]
    num_iterations = workload.tokens.shape[0]

    def by_run(each: Floats) -> Floats:
        """``[iterations, all micro-batches]`` to ``[micro-batches of a replica, 1, runs]``."""
        parts = [each[:, due.start : due.stop].T for due in dues]
        return np.stack(parts, axis=1).reshape(quota, 1, -1)

    tokens, squares = by_run(workload.tokens), by_run(workload.sum_of_squares)
    seconds: dict[tuple[ShardWork, ...], tuple[Floats, Floats]] = {}
    stages = []
    for s, stage in enumerate(layout.replicas[alike[0]].stages):
        works = [shard_work(model, layout, alike[0], s, t) for t in range(len(stage.ranks))]
        distinct = tuple(works[:1] if len(set(works)) == 1 else works)
        if distinct not in seconds:
            seconds[distinct] = _healthy_seconds(distinct, tokens, squares, hardware.seconds_per_flop)
        forward, backward = seconds[distinct]
        columns = [[column[layout.replicas[d].stages[s].ranks[t]] for d in alike] for t in range(len(works))]
        stages.append(
            PlainStage(
                program=program_of(layout, alike[0], s, range(quota)),
                forward=forward,
                backward=backward,
                slowdown=np.stack([slowdown[:, of_shard].T.reshape(-1) for of_shard in columns]),
                collective_seconds=hardware.tensor_seconds * stage.num_blocks if len(works) > 1 else 0.0,
            )
        )
    for s, times in enumerate(play(stages, hardware.transfer_seconds)):
        for place, d in enumerate(alike):
            runs = slice(place * num_iterations, (place + 1) * num_iterations)
            columns_of = [column[rank] for rank in layout.replicas[d].stages[s].ranks]
            into["forward"][:, columns_of] = times.forward[:, runs].T
            into["backward"][:, columns_of] = times.backward[:, runs].T
            into["waiting_tensor"][:, columns_of] = times.waiting_tensor[:, runs].T
            into["waiting_pipeline"][:, columns_of] = times.waiting_pipeline[runs, None]
            ready[:, columns_of] = times.clock[runs, None]


def _healthy_seconds(
    works: Sequence[ShardWork], tokens: Floats, squares: Floats, seconds_per_flop: float
) -> tuple[Floats, Floats]:
    """Forward and backward seconds of every micro-batch on healthy devices, one row of the middle axis a shard."""
    flops = [work.flops_per_token * tokens + work.flops_per_squared_length * squares for work in works]
    backward = [each * work.backward_multiple for each, work in zip(flops, works, strict=True)]
    return np.concatenate(flops, axis=1) * seconds_per_flop, np.concatenate(backward, axis=1) * seconds_per_flop


def _exchange(
    layout: Layout,
    hardware: Hardware,
    ready: Floats,
    links: LinkConditions | None,
    traffic: TrafficRecorder,
    column: dict[int, int],
) -> Floats:
    """When each rank has the reduced gradients: equal places of equal replicas exchange, else everybody does."""
    widths = {tuple(len(stage.ranks) for stage in replica.stages) for replica in layout.replicas}
    groups = [layout.ranks]
    if len(widths) == 1:
        shards = [[rank for stage in replica.stages for rank in stage.ranks] for replica in layout.replicas]
        groups = [tuple(sorted(group)) for group in zip(*shards, strict=True)]
    exchanged = np.empty_like(ready)
    for group in groups:
        columns = [column[rank] for rank in group]
        factor = 1.0 if links is None or len(group) == 1 else links.factors(group)
        ended = ready[:, columns].max(axis=1) + hardware.exchange_seconds * factor
        exchanged[:, columns] = ended[:, None]
        if links is None or len(group) == 1:
            continue
        for rank in group:
            entered = ready[:, column[rank]]
            traffic.note(
                rank,
                ChannelUse.COLLECTIVE,
                group_number(group),
                num_bytes=np.full(len(ready), float(links.exchange_bytes)),
                entered=entered,
                took=ended - entered,
                num_members=len(group),
            )
    return exchanged
