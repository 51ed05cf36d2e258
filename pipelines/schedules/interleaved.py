"""Interleaved 1F1B (Narayanan et al., arXiv 2104.04473): several chunks per device, placed in circles."""

from collections.abc import Sequence

from evenkeel.pipelines.case import Case
from evenkeel.pipelines.plan import Operation, Pass, Plan
from evenkeel.pipelines.schedules.cuts import equal_partition


def interleaved(case: Case, chunks: int, partition: Sequence[int] | None = None) -> Plan:
    """The interleaved 1F1B plan.

    Args:
        case: The case.
        chunks: Stages per device; 1 is plain 1F1B with a longer warm-up.
        partition: Layers of each of ``devices * chunks`` stages; equal numbers if left out.

    Raises:
        ValueError: Too few layers, or the micro-batches are not a multiple of the devices.
    """
    devices, count = case.devices, case.micro_batches
    if count % devices:
        raise ValueError(f"interleaved 1F1B needs a multiple of {devices} micro-batches, not {count}")
    sizes = tuple(partition or equal_partition(len(case.layers), devices * chunks))
    steps = count * chunks
    orders = []
    for device in range(devices):
        warm_up = steps if count == devices else min(steps, 2 * (devices - device - 1) + (chunks - 1) * devices)

        def step(kind: Pass, index: int, device: int = device) -> Operation:
            group, within = divmod(index, devices * chunks)
            chunk, offset = divmod(within, devices)
            if kind is Pass.BACKWARD:
                chunk = chunks - 1 - chunk
            return Operation(kind, group * devices + offset, chunk * devices + device)

        order = [step(Pass.FORWARD, index) for index in range(warm_up)]
        for index in range(steps):
            if index + warm_up < steps:
                order.append(step(Pass.FORWARD, index + warm_up))
            order.append(step(Pass.BACKWARD, index))
        orders.append(tuple(order))
    placement = tuple(stage % devices for stage in range(devices * chunks))
    return Plan(partition=sizes, placement=placement, orders=tuple(orders))
