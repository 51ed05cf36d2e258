"""A pipeline case: the layers, the devices and the rules that a plan must keep.

The JSON form is that of ``docs/pipelines.md``; what it does not know (sources, published figures) it passes over.
Time is in the unit of the case; activation memory is counted in the unit of ``memory.limit``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any


class Backward(StrEnum):
    """Whether the gradient of the weights may be computed apart from the gradient of the input."""

    SPLIT = "split"
    FUSED = "fused"


class PlacementRule(StrEnum):
    """Which placements a case allows; CYCLIC is stage s on device s mod devices."""

    ANY = "any"
    CYCLIC = "cyclic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one layer costs for one micro-batch on a device of speed 1."""

    forward: float
    backward_input: float
    backward_weight: float
    activation: float = 1.0

    @property
    def work(self) -> float:
        """Time for all three passes."""
        return self.forward + self.backward_input + self.backward_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCost:
    """Time that a stage costs on top of its layers."""

    forward: float = 0.0
    backward_input: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBias:
    """Extra time of a stage by its role: the first, the last, or one between."""

    first: RoleCost = field(default_factory=RoleCost)
    middle: RoleCost = field(default_factory=RoleCost)
    last: RoleCost = field(default_factory=RoleCost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One task for a pipeline planner.

    Attributes:
        name: For people.
        devices: Number of devices.
        micro_batches: Number of micro-batches of one iteration.
        layers: In model order.
        backward: Whether B and W may be scheduled apart.
        communication: Delay on an edge between two devices; it occupies neither.
        memory_limit: Most activation that a device may hold; None is no limit.
        speeds: Relative speed of each device, 1 is healthy; operations take ``time / speed``.
        stages: Exact number of stages; None leaves it to the planner.
        placement: Which placements are allowed.
        fifo: Operations of one kind on one stage must be in the order of the micro-batches.
        stage_bias: Extra time of a stage by role; None is none.
    """

    name: str
    devices: int
    micro_batches: int
    layers: tuple[Layer, ...]
    backward: Backward = Backward.SPLIT
    communication: float = 0.0
    memory_limit: float | None = None
    speeds: tuple[float, ...] = ()
    stages: int | None = None
    placement: PlacementRule = PlacementRule.ANY
    fifo: bool = False
    stage_bias: StageBias | None = None

    def __post_init__(self) -> None:
        if self.devices < 1 or self.micro_batches < 1 or not self.layers:
            raise ValueError(
                f"a case needs at least one device, micro-batch and layer, not {self.devices}, {self.micro_batches}"
                f" and {len(self.layers)}"
            )
        if not self.speeds:
            object.__setattr__(self, "speeds", (1.0,) * self.devices)
        if len(self.speeds) != self.devices or not all(isfinite(speed) and speed > 0 for speed in self.speeds):
            raise ValueError(f"device_speeds must hold {self.devices} positive numbers; leave a dead device out")
        if not isfinite(self.communication) or self.communication < 0:
            raise ValueError(f"communication must be a delay of 0 or more, not {self.communication}")
        for index, layer in enumerate(self.layers):
            costs = (layer.forward, layer.backward_input, layer.backward_weight, layer.activation)
            if not all(isfinite(cost) and cost >= 0 for cost in costs):
                raise ValueError(f"layer {index} has a negative or infinite cost: {costs}")
        if self.stages is not None and not 1 <= self.stages <= len(self.layers):
            raise ValueError(f"constraints.stages is {self.stages}, but there are {len(self.layers)} layers")
        self._check_memory()

    def _check_memory(self) -> None:
        if self.memory_limit is None:
            return
        largest = max(layer.activation for layer in self.layers)
        total = sum(layer.activation for layer in self.layers)
        if self.memory_limit < largest or self.memory_limit * self.devices < total:
            raise ValueError(
                f"memory.limit {self.memory_limit:g} cannot hold one micro-batch: the layers hold {total:g} together"
                f" (largest {largest:g}) on {self.devices} devices; raise the limit or add devices"
            )

    @property
    def has_equal_devices(self) -> bool:
        """Whether all devices have one speed."""
        return len(set(self.speeds)) == 1


def case_from_json(document: Mapping[str, Any]) -> Case:
    """Reads a case.

    Raises:
        ValueError: Something is missing or impossible; the message names the key.
    """
    if not isinstance(document, Mapping):
        raise ValueError("a case is a JSON object; see docs/pipelines.md")
    unknown_rule = "constraints.min_layers_per_stage other than 1 is not supported"
    try:
        memory = document.get("memory") or {}
        rules = document.get("constraints") or {}
        if rules.get("min_layers_per_stage", 1) != 1:
            raise ValueError(unknown_rule)
        if memory.get("release", "weight") != "weight":
            raise ValueError("memory.release must be 'weight': activations are held until B and W have ended")
        return Case(
            name=str(document.get("name", "case")),
            devices=_integer(document, "devices"),
            micro_batches=_integer(document, "micro_batches"),
            layers=tuple(_layer(index, layer) for index, layer in enumerate(document["layers"])),
            backward=Backward(document.get("backward", "split")),
            communication=_number(document, "communication", 0),
            memory_limit=None if memory.get("limit") is None else _number(memory, "limit", 0),
            speeds=tuple(float(speed) for speed in document.get("device_speeds") or ()),
            stages=None if rules.get("stages") is None else _integer(rules, "stages"),
            placement=PlacementRule(rules.get("placement", "any")),
            fifo=bool(rules.get("fifo", False)),
            stage_bias=_bias(document.get("stage_bias")),
        )
    except KeyError as missing:
        raise ValueError(f"the case lacks {missing.args[0]!r}; see docs/pipelines.md for the format") from missing
    except (TypeError, AttributeError) as error:
        raise ValueError(f"the case has a value of the wrong type: {error}; see docs/pipelines.md") from error


def case_to_json(case: Case) -> dict[str, Any]:
    """The case as a JSON document that :func:`case_from_json` reads."""
    rules: dict[str, Any] = {"min_layers_per_stage": 1, "placement": case.placement.value, "fifo": case.fifo}
    if case.stages is not None:
        rules["stages"] = case.stages
    document: dict[str, Any] = {
        "name": case.name,
        "devices": case.devices,
        "micro_batches": case.micro_batches,
        "backward": case.backward.value,
        "communication": case.communication,
        "memory": {"limit": case.memory_limit, "release": "weight"},
        "device_speeds": list(case.speeds),
        "constraints": rules,
        "layers": [
            {
                "forward": layer.forward,
                "backward_input": layer.backward_input,
                "backward_weight": layer.backward_weight,
                "activation": layer.activation,
            }
            for layer in case.layers
        ],
    }
    if case.stage_bias is not None:
        document["stage_bias"] = {
            role: {"forward": cost.forward, "backward_input": cost.backward_input}
            for role, cost in (
                ("first", case.stage_bias.first),
                ("middle", case.stage_bias.middle),
                ("last", case.stage_bias.last),
            )
        }
    return document


def _layer(index: int, document: Mapping[str, Any]) -> Layer:
    try:
        return Layer(
            forward=_number(document, "forward"),
            backward_input=_number(document, "backward_input"),
            backward_weight=_number(document, "backward_weight", 0),
            activation=_number(document, "activation", 1),
        )
    except KeyError as missing:
        raise ValueError(f"layer {index} lacks {missing.args[0]!r}") from missing


def _bias(document: Mapping[str, Any] | None) -> StageBias | None:
    if not document:
        return None
    roles = {
        role: RoleCost(forward=_number(cost, "forward", 0), backward_input=_number(cost, "backward_input", 0))
        for role, cost in document.items()
    }
    return StageBias(**roles)


def _number(document: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = document[key] if default is None else document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key!r} must be a number, not {value!r}")
    return value


def _integer(document: Mapping[str, Any], key: str) -> int:
    value = document[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key!r} must be a whole number, not {value!r}")
    return value
