"""A pipeline plan: partition of the layers into stages, placement of the stages, and each device's order of work."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Pass(StrEnum):
    """Kinds of work of a stage on a micro-batch. BACKWARD is both gradients as one block."""

    FORWARD = "F"
    BACKWARD_INPUT = "B"
    BACKWARD_WEIGHT = "W"
    BACKWARD = "BW"


class Operation(NamedTuple):
    """One pass of one stage for one micro-batch."""

    kind: Pass
    micro_batch: int
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An answer to a case.

    Attributes:
        partition: Number of consecutive layers of each stage.
        placement: Device of each stage; a device may have several (virtual) stages.
        orders: For each device, its operations in order.
    """

    partition: tuple[int, ...]
    placement: tuple[int, ...]
    orders: tuple[tuple[Operation, ...], ...]

    def __post_init__(self) -> None:
        if len(self.partition) != len(self.placement) or not self.partition:
            raise ValueError(f"{len(self.partition)} stages are cut but {len(self.placement)} are placed")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as a JSON document; ``schedule[device]`` is a list of ``[kind, micro-batch, stage]``."""
    return {
        "partition": list(plan.partition),
        "placement": [
            [stage for stage, device in enumerate(plan.placement) if device == each] for each in range(len(plan.orders))
        ],
        "schedule": [[[op.kind.value, op.micro_batch, op.stage] for op in order] for order in plan.orders],
    }


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """Reads a plan that :func:`plan_to_json` wrote.

    Raises:
        ValueError: A part is missing or a stage has no device or two.
    """
    try:
        partition = tuple(int(size) for size in document["partition"])
        device_of = {int(stage): d for d, stages in enumerate(document["placement"]) for stage in stages}
        orders = tuple(
            tuple(Operation(Pass(kind), int(micro_batch), int(stage)) for kind, micro_batch, stage in order)
            for order in document["schedule"]
        )
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"a plan has 'partition', 'placement' and 'schedule' as docs/pipelines.md says: {error}"
        ) from error
    num_placed = sum(len(stages) for stages in document["placement"])
    if sorted(device_of) != list(range(len(partition))) or num_placed != len(partition):
        raise ValueError(f"each of the {len(partition)} stages must be on exactly one device")
    return Plan(partition=partition, placement=tuple(device_of[s] for s in range(len(partition))), orders=orders)
