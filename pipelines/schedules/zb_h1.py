"""ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241): 1F1B with the weights' part put off."""

from collections.abc import Sequence

from evenkeel.pipelines.case import Backward, Case
from evenkeel.pipelines.plan import Operation, Pass, Plan
from evenkeel.pipelines.schedules.cuts import equal_partition


def zb_h1(case: Case, partition: Sequence[int] | None = None) -> Plan:
    """The ZB-H1 plan: device d warms up and alternates like 1F1B, and its W follow d micro-batches behind its B.

    Activations, held until W, stay within what 1F1B holds on its first device.

    Raises:
        ValueError: The case's backward is fused, or there are fewer layers than devices.
    """
    if case.backward is Backward.FUSED:
        raise ValueError("ZB-H1 needs a split backward")
    sizes = tuple(partition or equal_partition(len(case.layers), case.devices))
    devices, count = case.devices, case.micro_batches
    orders = []
    for stage in range(devices):
        warm_up = min(devices - 1 - stage, count)
        order = [Operation(Pass.FORWARD, m, stage) for m in range(warm_up)]
        for m in range(count):
            if m + warm_up < count:
                order.append(Operation(Pass.FORWARD, m + warm_up, stage))
            order.append(Operation(Pass.BACKWARD_INPUT, m, stage))
            if m >= stage:
                order.append(Operation(Pass.BACKWARD_WEIGHT, m - stage, stage))
        order += [Operation(Pass.BACKWARD_WEIGHT, m, stage) for m in range(max(0, count - stage), count)]
        orders.append(tuple(order))
    return Plan(partition=sizes, placement=tuple(range(devices)), orders=tuple(orders))
