"""Executes every operation of a pipeline-parallel job, many iterations at once.

Each stage works through its program from :mod:`layouts.schedules`; a tensor-parallel stage moves at its slowest shard;
receives wait for the neighbour's send plus a transfer; replicas meet in the gradient exchange and everybody in the
step. Iterations start together, as the step vote makes them, so all of them are computed side by side with numpy.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layouts.cut import cut
from layouts.instructions import Instruction, Op
from layouts.layout import Layout
from layouts.model import ModelSpec
from layouts.schedules import program_of
from simulator.workload import Workload

Floats = NDArray[np.float64]

_RECEIVES = {
    Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1),
    Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1),
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
    """What each rank measured; every array is ``[iterations, ranks]``, seconds; ranks ascending as in the layout."""

    ranks: tuple[int, ...]
    forward: Floats
    backward: Floats
    waiting_tensor: Floats
    waiting_pipeline: Floats
    waiting_gradient: Floats
    wall: Floats


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
        transfer_factor: Floats | None,
        column: dict[int, int],
    ) -> None:
        self._hardware, self._workload = hardware, workload
        self._slowdown, self._transfer_factor = slowdown, transfer_factor
        stages = layout.replicas[replica].stages
        self.columns = [[column[rank] for rank in stage.ranks] for stage in stages]
        self._num_blocks = [stage.num_blocks for stage in stages]
        self._programs = [program_of(layout, replica, s) for s in range(len(stages))]
        self._works = [
            [shard_work(model, layout, replica, s, t) for t in range(len(stage.ranks))]
            for s, stage in enumerate(stages)
        ]
        self.clocks = np.zeros((len(stages), workload.tokens.shape[0]))
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
        columns = self.columns[s]
        if one.op in _RECEIVES:
            send, offset = _RECEIVES[one.op]
            sent_at = self._sent.get((send, s + offset, one.micro_batch))
            if sent_at is None:
                return False
            wait = np.maximum(sent_at + self._transfer_seconds(s + offset, s) - self.clocks[s], 0.0)
            into["waiting_pipeline"][:, columns] += wait[:, None]
            self.clocks[s] += wait
        elif one.op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT):
            self._sent[one.op, s, one.micro_batch] = self.clocks[s].copy()
        elif one.op in (Op.FORWARD, Op.BACKWARD):
            backward = one.op is Op.BACKWARD
            own = self._compute_seconds(s, one.micro_batch, backward=backward)
            collective = self._hardware.tensor_seconds * self._num_blocks[s] * (len(columns) > 1) * (1 + backward)
            slowest = own.max(axis=1) + collective
            into["backward" if backward else "forward"][:, columns] += own
            into["waiting_tensor"][:, columns] += slowest[:, None] - own
            self.clocks[s] += slowest
        return True

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

    def _transfer_seconds(self, sender: int, receiver: int) -> Floats | float:
        """Seconds of one transfer in each iteration: the slower end decides."""
        if self._transfer_factor is None:
            return self._hardware.transfer_seconds
        ends = self._transfer_factor[:, self.columns[sender] + self.columns[receiver]]
        return np.asarray(self._hardware.transfer_seconds * ends.max(axis=1))


def run_pipeline(
    *,
    model: ModelSpec,
    layout: Layout,
    hardware: Hardware,
    workload: Workload,
    slowdown: Floats,
    transfer_factor: Floats | None = None,
) -> RankTimes:
    """Runs all iterations and returns what every rank would have measured.

    Args:
        model: Costs of the blocks.
        layout: Who holds what.
        hardware: Healthy speeds.
        workload: Micro-batches, ``[iterations, micro_batches]`` with the layout's number of micro-batches.
        slowdown: Compute time factor of each rank, ``[iterations, ranks]``, ranks ascending; noise included.
        transfer_factor: Factor on transfers that touch a rank, same shape; None = 1.
    """
    ranks = layout.ranks
    shape = (workload.tokens.shape[0], len(ranks))
    if slowdown.shape != shape:
        raise ValueError(f"slowdown has shape {slowdown.shape}, expected [iterations, ranks] = {shape}")
    column = {rank: index for index, rank in enumerate(ranks)}
    into = {name: np.zeros(shape) for name in ("forward", "backward", "waiting_tensor", "waiting_pipeline")}
    ready = np.zeros(shape)
    for d in range(len(layout.replicas)):
        replica = _ReplicaRun(layout, d, model, hardware, workload, slowdown, transfer_factor, column)
        replica.run(into)
        for s, columns in enumerate(replica.columns):
            ready[:, columns] = replica.clocks[s][:, None]
    # The gradient exchange and then the step vote end when the last rank arrives.
    last = ready.max(axis=1, keepdims=True)
    wall = np.repeat(last + hardware.exchange_seconds + hardware.optimizer_seconds, len(ranks), axis=1)
    return RankTimes(ranks=ranks, waiting_gradient=last - ready + hardware.exchange_seconds, wall=wall, **into)
