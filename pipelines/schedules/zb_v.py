"""ZB-V (Qi et al., arXiv 2401.10241 and 2405.15362): two stages per device, placed as a V, split backward.

Device d has stages d and 2p - 1 - d, so the last device turns a micro-batch round at once, and the device that begins
the forward also ends the backward. For equal costs the devices work without a gap in the memory of 1F1B.
"""

from collections.abc import Sequence

from evenkeel.layouts.cut import even_parts
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Turn
from evenkeel.pipelines.case import Backward, Case
from evenkeel.pipelines.plan import Plan


def zb_v(case: Case, partition: Sequence[int] | None = None) -> Plan:
    """The ZB-V plan.

    Raises:
        ValueError: The backward is fused, there are fewer layers than stages, or fewer than 2 p micro-batches.
    """
    if case.backward is Backward.FUSED:
        raise ValueError("ZB-V needs a split backward")
    if case.micro_batches < 2 * case.devices:
        raise ValueError(f"ZB-V needs {2 * case.devices} micro-batches or more, not {case.micro_batches}")
    devices = case.devices
    sizes = tuple(partition or even_parts(len(case.layers), 2 * devices))
    placement = tuple(min(stage, 2 * devices - 1 - stage) for stage in range(2 * devices))
    orders = tuple(tuple(_Device(case, device).run()) for device in range(devices))
    return Plan(partition=sizes, placement=placement, orders=orders)


class _Device:
    """Writes the list of one device: ``down`` is its stage on the way down the V, ``up`` the one on the way up."""

    def __init__(self, case: Case, device: int) -> None:
        self._devices, self._device, self._count = case.devices, device, case.micro_batches
        self._down, self._up = device, 2 * case.devices - 1 - device
        self._next: dict[tuple[Op, int], int] = {}
        self._order: list[Turn] = []

    def run(self) -> list[Turn]:
        forward, backward, weight = Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT
        down, up, add = self._down, self._up, self._add
        for _ in range(2 * (self._devices - self._device) - 1):
            add(forward, down)
        for _ in range(self._device):
            add(forward, up)
            add(forward, down)
        for _ in range(self._devices - self._device):
            for kind in (forward, backward, weight):
                add(kind, up)
        while self._done(forward, up) < self._count:
            add(forward, down)
            for kind in (backward, weight):
                add(kind, down)
            for kind in (forward, backward, weight):
                add(kind, up)
        # The last gradients go first; weights fill what would be gaps.
        for _ in range(self._device):
            add(backward, down)
            add(backward, up)
        for _ in range(self._devices - self._device):
            add(backward, down)
            add(weight, down)
        for stage in (up, down):
            while self._done(weight, stage) < self._done(backward, stage):
                add(weight, stage)
        return self._order

    def _done(self, kind: Op, stage: int) -> int:
        return self._next.get((kind, stage), 0)

    def _add(self, kind: Op, stage: int) -> None:
        micro_batch = self._done(kind, stage)
        if micro_batch < self._count:
            self._order.append(Turn(kind, micro_batch, stage))
            self._next[kind, stage] = micro_batch + 1
