"""Replicas that do the same work, played side by side where links keep to what the hardware says.

Every shard of a stage then leaves each operation at the same moment: a stage of a replica has one clock, and all
replicas and iterations move in one numpy operation. The same sums in the same order as the general execution of
:mod:`evenkeel.simulator.pipeline_run` plays them, so the results are equal bit for bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.layouts.instructions import BACKWARD_PART, Instruction, Op, Program
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.schedules import program_of
from evenkeel.simulator.hardware import Hardware, ShardWork, shard_work
from evenkeel.simulator.workload import Workload

Floats = NDArray[np.float64]

_SENDS = {Op.SEND_ACTIVATION, Op.SEND_GRADIENT}
_RECEIVES = {Op.RECEIVE_ACTIVATION: (Op.SEND_ACTIVATION, -1), Op.RECEIVE_GRADIENT: (Op.SEND_GRADIENT, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStage:
    """One stage of the replicas.

    Attributes:
        program: What it does; micro-batches counted from the replica's first.
        forward: Seconds of each micro-batch on a healthy device, ``[micro_batches, shards or 1, runs]``; a run is one
            iteration of one replica.
        backward: The same for backward passes.
        slowdown: Factor on the compute of each shard, ``[shards, runs]``.
        collective_seconds: Of a forward pass; twice that of a backward pass.
    """

    program: Program
    forward: Floats
    backward: Floats
    slowdown: Floats
    collective_seconds: float


class PlainTimes:
    """What the ranks of one stage measured so far, seconds.

    Attributes:
        forward: Compute of each shard, ``[shards, runs]``.
        backward: The same of backward passes.
        waiting_tensor: For the other shards, and in collectives.
        waiting_pipeline: For neighbours, and in transfers, ``[runs]``: equal for all shards.
        clock: Since the iteration began, ``[runs]``.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.forward = np.zeros(shape)
        self.backward = np.zeros(shape)
        self.waiting_tensor = np.zeros(shape)
        self.waiting_pipeline = np.zeros(shape[1])
        self.clock = np.zeros(shape[1])


def play(stages: Sequence[PlainStage], transfer_seconds: float) -> list[PlainTimes]:
    """Plays every stage's program to its end, for all replicas and iterations at once.

    Args:
        stages: In pipeline order; each receive needs its send somewhere in the neighbour's program.
        transfer_seconds: One activation, or its gradient, over one stage border.
    """
    times = [PlainTimes((stage.slowdown.shape[0], stage.slowdown.shape[1])) for stage in stages]
    sent: dict[tuple[Op, int, int], Floats] = {}
    positions = [0] * len(stages)
    while any(position < len(stage.program) for position, stage in zip(positions, stages, strict=True)):
        for s, stage in enumerate(stages):
            while positions[s] < len(stage.program):
                one = stage.program[positions[s]]
                if one.op in _RECEIVES:
                    send, offset = _RECEIVES[one.op]
                    sent_at = sent.pop((send, s + offset, one.micro_batch), None)
                    if sent_at is None:
                        break
                    _receive(times[s], sent_at, transfer_seconds)
                elif one.op in _SENDS:
                    # A clock is replaced and never written to, so it can be kept as it is.
                    sent[one.op, s, one.micro_batch] = times[s].clock
                else:
                    _compute(times[s], stage, one)
                positions[s] += 1
    return times


def _receive(times: PlainTimes, sent_at: Floats, transfer_seconds: float) -> None:
    took = np.maximum(sent_at, times.clock)
    took += transfer_seconds
    took -= times.clock
    times.waiting_pipeline += took
    times.clock = times.clock + took


def _compute(times: PlainTimes, stage: PlainStage, one: Instruction) -> None:
    if one.op is Op.FORWARD:
        own, into, passes = stage.forward[one.micro_batch] * stage.slowdown, times.forward, 1
    elif one.op in BACKWARD_PART:
        own, into, passes = stage.backward[one.micro_batch] * stage.slowdown, times.backward, 2
        if one.op is not Op.BACKWARD:
            # The weights' part is local; that shards end it together is a little too much.
            own, passes = own * BACKWARD_PART[one.op], 2 * (one.op is Op.BACKWARD_INPUT)
    else:
        return
    into += own
    own += times.clock
    ended = own.max(axis=0) + stage.collective_seconds * passes
    times.waiting_tensor += np.subtract(ended, own, out=own)
    times.clock = ended


def alike(layout: Layout) -> list[list[int]]:
    """Replicas in groups that do the same work: equal stages, equal quotas."""
    groups: dict[object, list[int]] = {}
    for d, replica in enumerate(layout.replicas):
        stages = tuple((stage.first_block, stage.stop_block, stage.shares) for stage in replica.stages)
        groups.setdefault((stages, replica.num_micro_batches), []).append(d)
    return list(groups.values())


def run_alike(
    layout: Layout,
    replicas: Sequence[int],
    *,
    model: ModelSpec,
    hardware: Hardware,
    workload: Workload,
    slowdown: Floats,
    column: Mapping[int, int],
) -> Iterator[tuple[list[int], dict[str, Floats]]]:
    """Plays replicas that do the same work, from the iteration's start to the end of their programs.

    Args:
        layout: Who holds what.
        replicas: One group of :func:`alike`.
        model: Costs of the blocks.
        hardware: Healthy speeds.
        workload: All micro-batches.
        slowdown: Compute time factor, ``[iterations, ranks]``.
        column: Each rank's place in ``slowdown``.

    Yields:
        Columns of the ranks of one stage of one replica, and what they measured, ``[iterations, columns]`` each by its
        name in :class:`evenkeel.simulator.pipeline_run.RankTimes`; ``clock`` is when they were through.
    """
    num_iterations = len(slowdown)
    stages = _plain_stages(layout, replicas, model, hardware, workload, slowdown, column)
    for s, times in enumerate(play(stages, hardware.transfer_seconds)):
        for place, d in enumerate(replicas):
            runs = slice(place * num_iterations, (place + 1) * num_iterations)
            columns = [column[rank] for rank in layout.replicas[d].stages[s].ranks]
            yield (
                columns,
                {
                    "forward": times.forward[:, runs].T,
                    "backward": times.backward[:, runs].T,
                    "waiting_tensor": times.waiting_tensor[:, runs].T,
                    "waiting_pipeline": times.waiting_pipeline[runs, None],
                    "clock": times.clock[runs, None],
                },
            )


def _plain_stages(
    layout: Layout,
    replicas: Sequence[int],
    model: ModelSpec,
    hardware: Hardware,
    workload: Workload,
    slowdown: Floats,
    column: Mapping[int, int],
) -> list[PlainStage]:
    first, quota = replicas[0], layout.replicas[replicas[0]].num_micro_batches
    dues = [layout.micro_batches_of(d) for d in replicas]

    def by_run(each: Floats) -> Floats:
        """``[iterations, all micro-batches]`` to ``[micro-batches of a replica, 1, runs]``."""
        parts = [each[:, due.start : due.stop].T for due in dues]
        return np.stack(parts, axis=1).reshape(quota, 1, len(dues) * len(each))

    tokens, squares = by_run(workload.tokens), by_run(workload.sum_of_squares)
    seconds: dict[tuple[ShardWork, ...], tuple[Floats, Floats]] = {}
    stages = []
    for s, stage in enumerate(layout.replicas[first].stages):
        works = [shard_work(model, layout, first, s, t) for t in range(len(stage.ranks))]
        distinct = tuple(works[:1] if len(set(works)) == 1 else works)
        if distinct not in seconds:
            seconds[distinct] = _healthy_seconds(distinct, tokens, squares, hardware.seconds_per_flop)
        forward, backward = seconds[distinct]
        shards = [[column[layout.replicas[d].stages[s].ranks[t]] for d in replicas] for t in range(len(works))]
        stages.append(
            PlainStage(
                program=program_of(layout, first, s, range(quota)),
                forward=forward,
                backward=backward,
                slowdown=np.stack([slowdown[:, columns].T.reshape(-1) for columns in shards]),
                collective_seconds=hardware.tensor_seconds * stage.num_blocks if len(works) > 1 else 0.0,
            )
        )
    return stages


def _healthy_seconds(
    works: Sequence[ShardWork], tokens: Floats, squares: Floats, seconds_per_flop: float
) -> tuple[Floats, Floats]:
    """Forward and backward seconds of every micro-batch on healthy devices, one row of the middle axis a shard."""
    flops = [work.flops_per_token * tokens + work.flops_per_squared_length * squares for work in works]
    backward = [each * work.backward_multiple for each, work in zip(flops, works, strict=True)]
    return np.concatenate(flops, axis=1) * seconds_per_flop, np.concatenate(backward, axis=1) * seconds_per_flop
