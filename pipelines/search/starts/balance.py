"""Judges assignments by the work of the devices alone: the fullest device's time, then how uneven they are."""

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.case import Case
from evenkeel.pipelines.search.starts.assignments import Assignment
from evenkeel.pipelines.search.tables import Floats, Ints, Table, stage_times, table_of


class Balance:
    """Judges assignments of one case."""

    def __init__(self, case: Case) -> None:
        self._table = table_of(case)

    def loads(self, assignment: Assignment) -> Floats:
        """For each device: when it can start, its work, and for fused backward what must follow its last operation."""
        return work_loads(self._table, *_arrays(assignment))

    def windows(self, assignment: Assignment) -> Floats:
        """For each device the longest of its stages' windows, see :func:`window_loads`."""
        return window_loads(self._table, *_arrays(assignment))

    def fits(self, assignment: Assignment) -> bool:
        """Whether every device can hold at least one whole micro-batch."""
        return fits(self._table, *_arrays(assignment))

    def score(self, assignment: Assignment) -> tuple[float, float]:
        """The fullest device's time, then how uneven the devices are; less is better."""
        return score_of(self.loads(assignment))


def _arrays(assignment: Assignment) -> tuple[Ints, Ints]:
    return np.array(assignment.partition), np.array(assignment.placement)


@compiled
def score_of(loads: Floats) -> tuple[float, float]:
    """The largest of some loads, then the sum of their squares; less is better."""
    most = squares = 0.0
    for load in loads:
        most = max(most, load)
        squares += load * load
    return most, squares


@compiled
def fits(table: Table, sizes: Ints, devices: Ints) -> bool:
    """Whether every device can hold at least one whole micro-batch of the stages of these sizes on these devices."""
    if table.limit == np.inf:
        return True
    held, start = np.zeros(table.speeds.shape[0]), 0
    for stage in range(sizes.shape[0]):
        held[devices[stage]] += table.held[start + sizes[stage]] - table.held[start]
        start += sizes[stage]
    return score_of(held)[0] <= table.limit


@compiled
def may_end(table: Table, sizes: Ints, devices: Ints, limit: float) -> bool:
    """Whether no device has more work than this; a quick look, before what a stage costs by its role."""
    loads, kinds, start = np.zeros(table.speeds.shape[0]), table.sums.shape[0], 0
    for stage in range(sizes.shape[0]):
        device, stop = devices[stage], start + sizes[stage]
        for kind in range(kinds):
            loads[device] += table.sums[kind, stop] - table.sums[kind, start]
        if loads[device] * table.micro_batches > limit * table.speeds[device]:
            return False
        start = stop
    return True


@compiled
def work_loads(table: Table, sizes: Ints, devices: Ints) -> Floats:
    """For each device: when it can start, its work, and for fused backward what must follow its last operation."""
    times, loads = stage_times(table, sizes, devices), np.zeros(table.speeds.shape[0])
    edge = 0.0
    is_used = np.zeros(loads.shape[0], np.bool_)
    for stage in range(sizes.shape[0]):
        device, work = devices[stage], times[0, stage] + times[1, stage]
        if not is_used[device]:
            is_used[device] = True
            loads[device] += edge
        edge += times[0, stage] if times.shape[0] == 3 else work
        loads[device] += table.micro_batches * (work + (times[2, stage] if times.shape[0] == 3 else 0.0))
    return loads


@compiled
def window_loads(table: Table, sizes: Ints, devices: Ints) -> Floats:
    """For each device what it may do before, between and after the passes of one of its stages; never less than work.

    From a stage's first F to its last B lie its own passes and all F and B of the device's later stages. Before can
    only be F of earlier stages, after only what is left of their backward and the weights. So with the way to the stage
    and the way back from it a plan takes at least ::

        core + max(way to it, F of earlier stages) + max(way back, B and W of earlier + W of it and of later stages)

    For a device with one heavy layer (a model's head) that is far more than its work: other layers fill the time before
    and after it only as far as their F and their backward fit there.
    """
    times, num_devices, count = stage_times(table, sizes, devices), table.speeds.shape[0], table.micro_batches
    # Of each device: F, then B and W, of its stages up to here; and F and B, and W, of this stage and of later ones.
    early_f, early_bw = np.zeros(num_devices), np.zeros(num_devices)
    core, rest = np.zeros(num_devices), np.zeros(num_devices)
    is_split = times.shape[0] == 3
    for stage in range(sizes.shape[0]):
        core[devices[stage]] += times[0, stage] + times[1, stage]
        if is_split:
            rest[devices[stage]] += times[2, stage]
    way_to = way_back = 0.0
    loads = np.zeros(num_devices)
    for stage in range(sizes.shape[0]):
        device, f, b, w = devices[stage], times[0, stage], times[1, stage], times[2, stage] if is_split else 0.0
        before, after = count * early_f[device], count * (early_bw[device] + rest[device])
        window = count * core[device] + max(way_to, before) + max(way_back, after)
        loads[device] = max(loads[device], window)
        core[device] -= f + b
        rest[device] -= w
        early_f[device] += f
        early_bw[device] += b + w
        way_to += f
        way_back += b
    return loads


@compiled
def works(table: Table, sizes: Ints, devices: Ints) -> Floats:
    """For each device: the time of all passes of its stages."""
    times, work = stage_times(table, sizes, devices), np.zeros(table.speeds.shape[0])
    for stage in range(sizes.shape[0]):
        for kind in range(times.shape[0]):
            work[devices[stage]] += table.micro_batches * times[kind, stage]
    return work


@compiled
def early_idle(device: Ints, durations: Floats, starts: Floats, makespan: float, num_devices: int) -> Floats:
    """For each device: how long it waited in the first half of a schedule; later there are weights for every gap.

    Args:
        device: Device of each stage; operations of one kind and micro-batch follow one another by stage.
        durations: Of each operation.
        starts: Of each operation.
        makespan: End of the last operation.
        num_devices: Number of devices.
    """
    half, num_stages = makespan / 2, device.shape[0]
    idle = np.full(num_devices, half)
    for first in range(0, starts.shape[0], num_stages):
        for stage in range(num_stages):
            start = starts[first + stage]
            if start < half:
                idle[device[stage]] -= min(durations[first + stage], half - start)
    return idle
