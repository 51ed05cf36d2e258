"""A stricter judge of assignments: what a device may do before, between and after the passes of one of its stages.

From a stage's first F to its last B lie its own passes and all F and B of the device's later stages. Before can only be
F of earlier stages, after only what is left of their backward and the weights. So with the way to the stage and the way
back from it a plan takes at least ::

    core + max(way to it, F of earlier stages) + max(way back, B and W of earlier stages + W of it and of later ones)

For a device with one heavy layer (a model's head) that is far more than its work: other layers fill the time before and
after it only as far as their F and their backward fit there.
"""

from collections.abc import Sequence

from pipelines.case import Backward
from pipelines.search.assignments import Assignment, Balance
from pipelines.search.dispatch import Schedule
from pipelines.search.network import Network


def early_idle(network: Network, schedule: Schedule) -> list[float]:
    """For each device: how long it waited in the first half of a schedule; later there are weights for every gap."""
    starts, durations, device_of = schedule.starts, network.durations, network.device
    half = schedule.makespan / 2
    idle = [half] * network.num_devices
    for start, duration, device in zip(starts, durations, device_of, strict=True):
        if start < half:
            idle[device] -= min(duration, half - start)
    return idle


class WindowBalance(Balance):
    """Judges assignments by each device's windows; never less than :class:`Balance` says, and still a bound."""

    def work(self, assignment: Assignment) -> list[float]:
        """For each device: the time of all passes of its stages."""
        work = [0.0] * self._case.devices
        for device, *times in zip(assignment.placement, *self._stage_times(assignment), strict=True):
            work[device] += self._case.micro_batches * sum(times)
        return work

    def loads(self, assignment: Assignment) -> list[float]:
        """For each device: the longest of its stages' windows with what must lie before and after."""
        case, devices = self._case, assignment.placement
        forwards, backwards, weights = self._stage_times(assignment)
        # Of each device: F, then B and W, of its stages up to here; and F and B, and W, of all of its stages.
        early_f, early_bw = [0.0] * case.devices, [0.0] * case.devices
        core, rest = [0.0] * case.devices, [0.0] * case.devices
        for device, f, b, w in zip(devices, forwards, backwards, weights, strict=True):
            core[device] += f + b
            rest[device] += w
        way_to = way_back = 0.0
        count, loads = case.micro_batches, [0.0] * case.devices
        for device, f, b, w in zip(devices, forwards, backwards, weights, strict=True):
            # What is left in core and rest is of this stage and of later ones.
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

    def foreseen(self, assignment: Assignment, idle: Sequence[float]) -> tuple[float, float]:
        """Like the score, but of work and what each device idles early in the schedule of a like assignment."""
        ends = [work + lost for work, lost in zip(self.work(assignment), idle, strict=True)]
        return max(ends), sum(end * end for end in ends)

    def _stage_times(self, assignment: Assignment) -> tuple[list[float], list[float], list[float]]:
        """F, B and W of each stage; a fused backward is all B."""
        case, start, last = self._case, 0, len(assignment.partition) - 1
        is_fused, roles = case.backward is Backward.FUSED, case.stage_bias
        forwards, backwards, weights = [], [], []
        for stage, (size, device) in enumerate(zip(assignment.partition, assignment.placement, strict=True)):
            stop, speed = start + size, case.speeds[device]
            f = self._lead[stop] - self._lead[start]
            b = self._back[stop] - self._back[start]
            w = self._work[stop] - self._work[start] - f - b
            if roles is not None:
                bias = roles.first if not stage else roles.last if stage == last else roles.middle
                f, b = f + bias.forward, b + bias.backward_input
            forwards.append(f / speed)
            backwards.append((b + w if is_fused else b) / speed)
            weights.append(0.0 if is_fused else w / speed)
            start = stop
        return forwards, backwards, weights
