"""A case, and the stages that are cut from it, as arrays: what machine code reads.

Sums over layers are differences of running sums: whole numbers stay exact, fractions to rounding. What a plan is worth
in the end is always worked out anew from the layers (:mod:`evenkeel.pipelines.evaluate`).
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.case import Case, PlacementRule, RoleCost, allowed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Table(NamedTuple):
    """A case as arrays.

    Attributes:
        sums: Running sums over the layers, [kinds, layers + 1], of F, B and W; two kinds if the backward is fused.
        held: Running sums of the layers' activations, [layers + 1].
        bias: What a stage's F and B take longer as first, middle or last one, [3, 2].
        speeds: Of each device.
        micro_batches: Their number.
        communication: Delay between devices.
        limit: Most activation that a device may hold, with room for rounding; infinite for no limit.
        stages: Their number; 0 leaves it free.
        may_move: Whether stages may change devices.
    """

    sums: Floats
    held: Floats
    bias: Floats
    speeds: Floats
    micro_batches: int
    communication: float
    limit: float
    stages: int
    may_move: bool


class Stages(NamedTuple):
    """A cut and placed model as arrays.

    Attributes:
        device: Device of each stage.
        times: F, B and W of each stage on its device, [kinds, stages].
        activation: What each stage holds for one micro-batch.
        num_devices: Number of devices.
        micro_batches: Their number.
        communication: Delay between devices.
    """

    device: Ints
    times: Floats
    activation: Floats
    num_devices: int
    micro_batches: int
    communication: float


def table_of(case: Case) -> Table:
    """The arrays of a case."""
    kinds = list(zip(*map(case.passes, case.layers), strict=True))
    bias, no_cost = case.stage_bias, RoleCost()
    roles = (no_cost,) * 3 if bias is None else (bias.first, bias.middle, bias.last)
    return Table(
        sums=np.array([_running(times) for times in kinds[: case.num_kinds]]),
        held=np.array(_running([layer.activation for layer in case.layers])),
        bias=np.array([(role.forward, role.backward_input) for role in roles], dtype=np.float64),
        speeds=np.array(case.speeds, dtype=np.float64),
        micro_batches=case.micro_batches,
        communication=float(case.communication),
        limit=np.inf if case.memory_limit is None else float(allowed(case.memory_limit)),
        stages=case.stages or 0,
        may_move=case.placement is PlacementRule.ANY and case.devices > 1,
    )


def _running(values: Sequence[float]) -> list[float]:
    return [0.0, *accumulate(map(float, values))]


@compiled
def stage_times(table: Table, sizes: Ints, devices: Ints) -> Floats:
    """F, B and W of each stage on its device, [kinds, stages]."""
    kinds, count = table.sums.shape[0], sizes.shape[0]
    times = np.empty((kinds, count))
    start = 0
    for stage in range(count):
        stop, speed = start + sizes[stage], table.speeds[devices[stage]]
        role = 0 if stage == 0 else 2 if stage == count - 1 else 1
        for kind in range(kinds):
            extra = table.bias[role, kind] if kind < 2 else 0.0
            times[kind, stage] = (table.sums[kind, stop] - table.sums[kind, start] + extra) / speed
        start = stop
    return times


@compiled
def stages_of(table: Table, sizes: Ints, devices: Ints) -> Stages:
    """The stages of some sizes on some devices."""
    activation, start = np.empty(sizes.shape[0]), 0
    for stage in range(sizes.shape[0]):
        activation[stage] = table.held[start + sizes[stage]] - table.held[start]
        start += sizes[stage]
    times, delay = stage_times(table, sizes, devices), table.communication
    return Stages(devices, times, activation, table.speeds.shape[0], table.micro_batches, delay)


@compiled
def durations_of(stages: Stages) -> Floats:
    """Time of each operation."""
    kinds, num_stages = stages.times.shape
    block = num_stages * stages.micro_batches
    durations = np.empty(kinds * block)
    for kind in range(kinds):
        for first in range(kind * block, (kind + 1) * block, num_stages):
            for stage in range(num_stages):
                durations[first + stage] = stages.times[kind, stage]
    return durations
