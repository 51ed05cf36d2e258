"""Executes every operation of a pipeline-parallel job, many iterations at once.

Each stage works through its program from :mod:`evenkeel.layouts.schedules`; a tensor-parallel stage moves at its
slowest shard;
a transfer begins when both its ends are there, as with NCCL and gloo; replicas meet in the gradient exchange and
everybody in the step vote. Iterations start together, as the vote makes them, so all of them are computed side by
side with numpy; so are replicas that do the same work, where nothing is told of links (see
:mod:`evenkeel.simulator.plain_run`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.layouts.instructions import BACKWARD_PART, Instruction, Op
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.schedules import program_of
from evenkeel.layouts.traffic import group_number
from evenkeel.simulator.hardware import Hardware, shard_work
from evenkeel.simulator.links import ChannelTimes, ChannelUse, LinkConditions, TrafficRecorder
from evenkeel.simulator.plain_run import alike, run_alike
from evenkeel.simulator.workload import Workload

Floats = NDArray[np.float64]

_RECEIVES = {
    Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1, ChannelUse.ACTIVATION_SENT, ChannelUse.ACTIVATION_RECEIVED),
    Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1, ChannelUse.GRADIENT_SENT, ChannelUse.GRADIENT_RECEIVED),
}


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
        links: LinkConditions,
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
        elif one.op is Op.FORWARD or one.op in BACKWARD_PART:
            columns, backward = self.columns[s], one.op is not Op.FORWARD
            own = self._compute_seconds(s, one.micro_batch, backward=backward) * BACKWARD_PART.get(one.op, 1.0)
            entered = self.clocks[s] + own
            ended = entered.max(axis=1)
            if one.op is not Op.BACKWARD_WEIGHT:  # which is local; that shards end it together is a little too much
                ended = ended + self._collective_seconds(s, one.micro_batch, entered, backward=backward)
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
            seconds = self._hardware.transfer_seconds * self._links.factors((sender, receiver))
            took = np.maximum(sent, entered) + seconds - entered
            into["waiting_pipeline"][:, self.columns[s][t]] += took
            self.clocks[s][:, t] += took
            self._traffic.note(sender, sent_use, receiver, num_bytes=num_bytes, entered=sent)
            self._traffic.note(receiver, received_use, sender, num_bytes=num_bytes, entered=entered, took=took)
        return True

    def _collective_seconds(self, s: int, micro_batch: int, entered: Floats, *, backward: bool) -> Floats | float:
        """Seconds of a pass's collectives, taken as one after the pass; every shard notes what it saw of it."""
        ranks = self._ranks[s]
        if len(ranks) == 1:
            return 0.0
        seconds = self._hardware.tensor_seconds * self._num_blocks[s] * (1 + backward) * self._links.factors(ranks)
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

    def _activation_bytes(self, micro_batch: int) -> Floats:
        return np.asarray(self._workload.tokens[:, micro_batch] * self._links.bytes_per_token)


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
        ValueError: ``slowdown`` does not fit the run, or the layout has routes or ranks with several stages: here every
            replica runs alone, and every stage.
    """
    if layout.routes:
        raise ValueError(f"the layout has {len(layout.routes)} routes: simulated jobs must not say that they run them")
    if any(replica.orders for replica in layout.replicas):
        raise ValueError(
            "ranks of the layout have several stages: simulated jobs must not say that they run such layouts"
        )
    ranks = layout.ranks
    shape = (workload.tokens.shape[0], len(ranks))
    if slowdown.shape != shape:
        raise ValueError(f"slowdown has shape {slowdown.shape}, expected [iterations, ranks] = {shape}")
    column = {rank: index for index, rank in enumerate(ranks)}
    traffic = TrafficRecorder()
    into = {name: np.zeros(shape) for name in ("forward", "backward", "waiting_tensor", "waiting_pipeline")}
    ready = np.zeros(shape)
    if links is None:
        for replicas in alike(layout):
            for ranks_of, measured in run_alike(
                layout, replicas, model=model, hardware=hardware, workload=workload, slowdown=slowdown, column=column
            ):
                ready[:, ranks_of] = measured.pop("clock")
                for name, seconds in measured.items():
                    into[name][:, ranks_of] = seconds
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
