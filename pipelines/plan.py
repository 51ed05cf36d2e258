"""A pipeline plan: partition of the layers into stages, placement of the stages, and each device's order of work."""

from dataclasses import dataclass
from typing import Any

from evenkeel.layouts.programs.orders import Order, orders_to_lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An answer to a case.

    Attributes:
        partition: Number of consecutive layers of each stage.
        placement: Device of each stage; a device may have several (virtual) stages.
        orders: For each device, its passes in order.
    """

    partition: tuple[int, ...]
    placement: tuple[int, ...]
    orders: tuple[Order, ...]

    def __post_init__(self) -> None:
        if len(self.partition) != len(self.placement) or not self.partition:
            raise ValueError(f"{len(self.partition)} stages are cut but {len(self.placement)} are placed")
        if min(self.partition) < 1:
            raise ValueError(f"stages of {self.partition} layers: there are fewer layers than stages")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as a JSON document; ``schedule[device]`` is a list of ``[kind, micro-batch, stage]``."""
    return {
        "partition": list(plan.partition),
        "placement": [
            [stage for stage, device in enumerate(plan.placement) if device == each] for each in range(len(plan.orders))
        ],
        "schedule": orders_to_lists(plan.orders),
    }
