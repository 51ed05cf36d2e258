"""GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards."""

from collections.abc import Sequence

from evenkeel.layouts.cut import even_parts
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Turn
from evenkeel.pipelines.case import Case
from evenkeel.pipelines.plan import Plan


def gpipe(case: Case, partition: Sequence[int] | None = None) -> Plan:
    """The GPipe plan, one stage per device.

    Raises:
        ValueError: There are fewer layers than devices.
    """
    sizes = tuple(partition or even_parts(len(case.layers), case.devices))
    batches = range(case.micro_batches)
    orders = tuple(
        tuple(Turn(op, m, stage) for op in (Op.FORWARD, Op.BACKWARD) for m in batches) for stage in range(case.devices)
    )
    return Plan(partition=sizes, placement=tuple(range(case.devices)), orders=orders)
