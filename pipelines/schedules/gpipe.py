"""GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards."""

from collections.abc import Sequence

from evenkeel.pipelines.case import Case
from evenkeel.pipelines.plan import Operation, Pass, Plan
from evenkeel.pipelines.schedules.cuts import equal_partition


def gpipe(case: Case, partition: Sequence[int] | None = None) -> Plan:
    """The GPipe plan, one stage per device.

    Raises:
        ValueError: There are fewer layers than devices.
    """
    sizes = tuple(partition or equal_partition(len(case.layers), case.devices))
    batches = range(case.micro_batches)
    orders = tuple(
        tuple(Operation(kind, m, stage) for kind in (Pass.FORWARD, Pass.BACKWARD) for m in batches)
        for stage in range(case.devices)
    )
    return Plan(partition=sizes, placement=tuple(range(case.devices)), orders=orders)
