"""Interleaved 1F1B (Narayanan et al., arXiv 2104.04473): several chunks per device, placed in circles."""

from collections.abc import Sequence

from evenkeel.layouts.cut import even_parts
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.pipelines.case import Case
from evenkeel.pipelines.plan import Plan


def interleaved(case: Case, chunks: int, partition: Sequence[int] | None = None) -> Plan:
    """The interleaved 1F1B plan.

    Args:
        case: The case.
        chunks: Stages per device; 1 is plain 1F1B with a longer warm-up.
        partition: Layers of each of ``devices * chunks`` stages; equal numbers if left out.

    Raises:
        ValueError: Too few layers.
    """
    num_stages = case.devices * chunks
    orders = interleaved_orders(case.devices, chunks, case.micro_batches)
    placement = tuple([stage % case.devices for stage in range(num_stages)])
    sizes = tuple(partition or even_parts(len(case.layers), num_stages))
    return Plan(partition=sizes, placement=placement, orders=orders)
