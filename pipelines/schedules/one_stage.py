"""Schedules that ranks run with one stage each, as plans: 1F1B, and ZB-H1 with the weights' part put off."""

from collections.abc import Sequence

from evenkeel.layouts.cut import even_parts
from evenkeel.layouts.programs.execution import COMPUTES
from evenkeel.layouts.programs.orders import Turn
from evenkeel.layouts.programs.schedules import SPLIT_BACKWARD, stage_programs
from evenkeel.pipelines.case import Backward, Case
from evenkeel.pipelines.plan import Plan


def one_stage_each(case: Case, schedule: str, partition: Sequence[int] | None = None) -> Plan:
    """The plan of a schedule of :mod:`evenkeel.layouts.programs.schedules`, one stage per device.

    Raises:
        ValueError: The schedule splits the backward and the case's is fused, or there are fewer layers than devices.
    """
    if schedule in SPLIT_BACKWARD and case.backward is Backward.FUSED:
        raise ValueError(f"{schedule} needs a split backward")
    sizes = tuple(partition or even_parts(len(case.layers), case.devices))
    orders = tuple(
        tuple([Turn(each.op, each.micro_batch, each.stage) for each in program if each.op in COMPUTES])
        for program in stage_programs(schedule, case.devices, case.micro_batches)
    )
    return Plan(partition=sizes, placement=tuple(range(case.devices)), orders=orders)
