"""All cuts of a cyclic case that could be faster than a plan that is known, by the work of the devices alone.

Depth first, stage by stage. A device can do no more than its stages' work after the way to its first stage (fused: and
before the way back from it) allows; a branch ends where a device is over that, or where what is left of the layers is
more than what is left of the devices, each counted in whole layers where these are alike. So of hundreds of millions
of cuts some thousands are looked at in full.
"""

from collections.abc import Iterator
from itertools import accumulate

from evenkeel.pipelines.case import Backward, Case
from evenkeel.pipelines.search.starts.assignments import Assignment

_LESS = 1.0 - 1e-9  # a plan that is better by less is no better
_SAME = 1.0 + 1e-12  # sums of the same times in another order


def cuts_below(case: Case, value: float) -> Iterator[Assignment]:
    """Cuts into the case's stages, placed in circles, that the work of no device keeps from ending before ``value``.

    What would end less than a billionth before it is left out.

    Raises:
        ValueError: The case fixes no number of stages.
    """
    if case.stages is None:
        raise ValueError("the cuts of a case with a free number of stages have no end; give constraints.stages")
    yield from _Cuts(case, case.stages, value).run()


class _Cuts:
    def __init__(self, case: Case, num_stages: int, value: float) -> None:
        self._case, self._num_stages, self._value = case, num_stages, value * _LESS
        self._placement = tuple(stage % case.devices for stage in range(num_stages))
        self._last_stage = [max(range(device, num_stages, case.devices), default=-1) for device in range(case.devices)]
        layers = case.layers
        is_fused = case.backward is Backward.FUSED
        self._work = [0.0, *accumulate(layer.work for layer in layers)]
        ways = [case.passes(layer)[: 1 + is_fused] for layer in layers]
        self._way = [0.0, *accumulate(map(sum, ways))]
        roles = [case.role_cost(stage, num_stages) for stage in range(num_stages)]
        self._role_work = [role.forward + role.backward_input for role in roles]
        self._role_way = [role.forward + (role.backward_input if is_fused else 0.0) for role in roles]
        works = {layer.work for layer in layers}
        self._whole = works.pop() if len(works) == 1 and case.stage_bias is None else 0.0
        self._sizes: list[int] = []

    def run(self) -> Iterator[Assignment]:
        yield from self._from(0, 0.0, [0.0] * self._case.devices)

    def _from(self, start: int, way: float, loads: list[float]) -> Iterator[Assignment]:
        """Cuts of the layers from ``start`` on, after a way of this length, on devices with these loads."""
        case, stage, num_layers = self._case, len(self._sizes), len(self._case.layers)
        device, left = self._placement[stage], self._num_stages - stage - 1
        speed = case.speeds[device]
        before = loads[device] if stage >= case.devices else way
        sizes = range(1, num_layers - start - left + 1) if left else (num_layers - start,)
        for size in sizes:
            stop = start + size
            work = self._work[stop] - self._work[start] + self._role_work[stage]
            load = before + case.micro_batches * work / speed
            if load >= self._value:
                break
            further = way + (self._way[stop] - self._way[start] + self._role_way[stage]) / speed
            loads_now = [*loads[:device], load, *loads[device + 1 :]]
            if not self._has_room(stop, further, stage + 1, loads_now):
                continue
            self._sizes.append(size)
            if left:
                yield from self._from(stop, further, loads_now)
            else:
                yield Assignment(tuple(self._sizes), self._placement)
            self._sizes.pop()

    def _has_room(self, stop: int, way: float, next_stage: int, loads: list[float]) -> bool:
        """Whether the devices that have stages to come have time for the layers that are left."""
        case, whole, room = self._case, self._whole, 0.0
        for device, load in enumerate(loads):
            if self._last_stage[device] < next_stage:
                continue
            own = (self._value - (way if device >= next_stage else load)) * case.speeds[device] / case.micro_batches
            if own > 0.0:
                room += own * _SAME // whole * whole if whole else own * _SAME
        return room >= self._work[-1] - self._work[stop]
