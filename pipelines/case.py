"""A pipeline case: the layers, the devices and the rules that a plan must keep.

How a file says it: :mod:`evenkeel.pipelines.case_file`. Time is in the unit of the case; activation memory is counted
in the unit of ``memory.limit``.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

_MOST_DEVICES = 100_000
_MOST_PASSES = 10_000_000


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
    backward_weight: float = 0
    activation: float = 1

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
        if self.devices > _MOST_DEVICES or len(self.layers) * self.micro_batches > _MOST_PASSES:
            raise ValueError(
                f"{self.devices} devices, {self.micro_batches} micro-batches of {len(self.layers)} layers are too many:"
                f" at most {_MOST_DEVICES} devices and {_MOST_PASSES} layers times micro-batches"
            )
        if not self.speeds:
            object.__setattr__(self, "speeds", (1.0,) * self.devices)
        if len(self.speeds) != self.devices:
            raise ValueError(f"device_speeds must hold {self.devices} numbers, one a device, not {len(self.speeds)}")
        if not all(isfinite(speed) and speed > 0 for speed in self.speeds):
            raise ValueError(f"device_speeds must be above 0, not {min(self.speeds):g}; leave a dead device out")
        if not isfinite(self.communication) or self.communication < 0:
            raise ValueError(f"communication must be a delay of 0 or more, not {self.communication}")
        for index, layer in enumerate(self.layers):
            costs = (layer.forward, layer.backward_input, layer.backward_weight, layer.activation)
            if not all(isfinite(cost) and cost >= 0 for cost in costs):
                raise ValueError(f"layer {index} has a negative or infinite cost: {costs}")
        if self.stage_bias is not None:
            roles = (self.stage_bias.first, self.stage_bias.middle, self.stage_bias.last)
            if not all(isfinite(cost) and cost >= 0 for role in roles for cost in (role.forward, role.backward_input)):
                raise ValueError(f"stage_bias has a negative or infinite cost: {roles}")
        if self.stages is not None and self.stages < 1:
            raise ValueError(f"constraints.stages must be 1 or more, not {self.stages}")
        if self.stages is not None and self.stages > len(self.layers):
            raise ValueError(f"constraints.stages is {self.stages}, but there are {len(self.layers)} layers")
        self._check_memory()

    def _check_memory(self) -> None:
        if self.memory_limit is None:
            return
        largest = max(layer.activation for layer in self.layers)
        total = sum(layer.activation for layer in self.layers)
        if not isfinite(self.memory_limit) or self.memory_limit < 0:
            raise ValueError(f"memory.limit must be 0 or more, or null for no limit, not {self.memory_limit:g}")
        limit = allowed(self.memory_limit)
        if limit < largest or limit * self.devices < total:
            raise ValueError(
                f"memory.limit {self.memory_limit:g} cannot hold one micro-batch: the layers hold {total:g} together"
                f" (largest {largest:g}) on {self.devices} devices; raise the limit or add devices"
            )

    @property
    def num_kinds(self) -> int:
        """Kinds of passes: F and B, and W where it may be scheduled apart."""
        return 3 if self.backward is Backward.SPLIT else 2

    def passes(self, layer: Layer) -> tuple[float, float, float]:
        """F, B and W of a layer, as they may be scheduled: a fused backward is all B."""
        if self.backward is Backward.SPLIT:
            return layer.forward, layer.backward_input, layer.backward_weight
        return layer.forward, layer.backward_input + layer.backward_weight, 0.0

    def role_cost(self, stage: int, num_stages: int) -> RoleCost:
        """What one of so many stages costs on top of its layers."""
        if self.stage_bias is None:
            return RoleCost()
        if stage == 0:
            return self.stage_bias.first
        return self.stage_bias.last if stage == num_stages - 1 else self.stage_bias.middle

    @property
    def has_equal_devices(self) -> bool:
        """Whether all devices have one speed."""
        return len(set(self.speeds)) == 1


def allowed(memory_limit: float) -> float:
    """The most that a device may hold, with room for what sums of fractions are rounded by."""
    return memory_limit + 1e-9 * max(1.0, memory_limit)
