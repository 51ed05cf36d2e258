"""Devices in nodes, nodes in racks: what fails together."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What one fault hits."""

    DEVICE = "device"
    NODE = "node"
    RACK = "rack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A fleet; device i is rank i of the job that runs on it.

    Attributes:
        num_devices: All devices, standbys included.
        devices_per_node: Consecutive devices form a node; the last may be smaller.
        nodes_per_rack: Consecutive nodes form a rack.
    """

    num_devices: int
    devices_per_node: int = 8
    nodes_per_rack: int = 4

    def __post_init__(self) -> None:
        for name in ("num_devices", "devices_per_node", "nodes_per_rack"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a fleet needs at least 1")

    def members(self, scope: Scope, device: int) -> tuple[int, ...]:
        """Devices that fail together with ``device`` under a scope."""
        size = {
            Scope.DEVICE: 1,
            Scope.NODE: self.devices_per_node,
            Scope.RACK: self.devices_per_node * self.nodes_per_rack,
        }[scope]
        first = device // size * size
        return tuple(range(first, min(first + size, self.num_devices)))
