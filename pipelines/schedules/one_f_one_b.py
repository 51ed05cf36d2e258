"""1F1B (PipeDream-flush, Narayanan et al., arXiv 2006.09503)."""

from collections.abc import Sequence

from evenkeel.pipelines.case import Case
from evenkeel.pipelines.plan import Operation, Pass, Plan
from evenkeel.pipelines.schedules.cuts import equal_partition


def one_f_one_b(case: Case, partition: Sequence[int] | None = None) -> Plan:
    """The 1F1B plan: warm up, then one forward and one backward by turns, then drain.

    Device d holds at most ``devices - d`` micro-batches.

    Raises:
        ValueError: There are fewer layers than devices.
    """
    sizes = tuple(partition or equal_partition(len(case.layers), case.devices))
    orders = []
    for stage in range(case.devices):
        warm_up = min(case.devices - 1 - stage, case.micro_batches)
        order = [Operation(Pass.FORWARD, m, stage) for m in range(warm_up)]
        for m in range(case.micro_batches):
            if m + warm_up < case.micro_batches:
                order.append(Operation(Pass.FORWARD, m + warm_up, stage))
            order.append(Operation(Pass.BACKWARD, m, stage))
        orders.append(tuple(order))
    return Plan(partition=sizes, placement=tuple(range(case.devices)), orders=tuple(orders))
