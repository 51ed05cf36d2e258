"""Replicas that do the same work, played side by side where links keep to what the hardware says.

Every shard of a stage then leaves each operation at the same moment: a stage of a replica has one clock, and all
replicas and iterations move in one numpy operation. The same sums in the same order as the general execution of
:mod:`simulator.pipeline_run` plays them, so the results are equal bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layouts.instructions import Instruction, Op, Program

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
    elif one.op is Op.BACKWARD:
        own, into, passes = stage.backward[one.micro_batch] * stage.slowdown, times.backward, 2
    else:
        return
    into += own
    own += times.clock
    ended = own.max(axis=0) + stage.collective_seconds * passes
    times.waiting_tensor += np.subtract(ended, own, out=own)
    times.clock = ended
