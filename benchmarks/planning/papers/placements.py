"""Whom failures hit, one after the other: which papers do not say, and on which results hang.

A system that gives up a whole tensor group, node or replica for one death loses little when the next deaths are in what
it has given up already, and much when they are spread.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from evenkeel.layouts.layout import Layout
from evenkeel.simulator.fleet.faults.faults import Fault
from evenkeel.simulator.fleet.faults.topology import Scope, Topology

PLACEMENTS: Mapping[str, str] = MappingProxyType(
    {
        "even": "one device of each tensor group in turn, replica by replica",
        "random": "every device as likely as any other",
        "group": "one tensor group after another",
        "node": "one node after another",
        "replica": "one replica after another",
    }
)
"""By name: who dies."""


def victims(placement: str, home: Layout, topology: Topology, seed: int) -> tuple[int, ...]:
    """All devices of a job in the order in which they fail; units and devices within them in a random order.

    Args:
        placement: One of :data:`PLACEMENTS`.
        home: The job.
        topology: Its nodes.
        seed: Of the order.

    Raises:
        ValueError: No such placement.
    """
    rng = np.random.default_rng(seed)

    def mixed(some: Iterable[int]) -> list[int]:
        return [int(each) for each in rng.permutation(sorted(some))]

    groups = [stage.ranks for replica in home.replicas for stage in replica.stages]
    if placement == "random":
        return tuple(mixed(home.ranks))
    if placement == "even":
        return _in_turn([mixed(groups[d]) for d in _across(home)])
    if placement == "group":
        units: Sequence[Sequence[int]] = groups
    elif placement == "node":
        nodes = range(0, topology.num_devices, topology.devices_per_node)
        units = [[rank for rank in topology.members(Scope.NODE, first) if rank in home.ranks] for first in nodes]
    elif placement == "replica":
        units = [replica.ranks for replica in home.replicas]
    else:
        raise ValueError(f"no placement {placement!r}: give one of {', '.join(PLACEMENTS)}")
    return tuple(rank for unit in mixed(range(len(units))) for rank in mixed(units[unit]))


def deaths(
    placement: str,
    home: Layout,
    topology: Topology,
    *,
    every_seconds: float,
    duration_seconds: float,
    seed: int,
    throughputs: Sequence[float] = (0.0,),
) -> tuple[Fault, ...]:
    """A failure at each interval that nobody repairs.

    Args:
        placement: One of :data:`PLACEMENTS`.
        home: The job.
        topology: Its nodes.
        every_seconds: Between failures; the first one is there after so long.
        duration_seconds: Of the run.
        seed: Of the order of victims.
        throughputs: What is left of the victims' speed, in turn; 0 = dead.
    """
    num_failures = min(len(home.ranks), int((duration_seconds - 1e-9) // every_seconds))
    hit = victims(placement, home, topology, seed)[:num_failures]
    return tuple(
        Fault(at_seconds=(place + 1) * every_seconds, devices=(rank,), throughput=throughputs[place % len(throughputs)])
        for place, rank in enumerate(hit)
    )


def _across(home: Layout) -> list[int]:
    """Numbers of the tensor groups, those of one stage in all replicas side by side, neighbours far apart."""
    num_stages = len(home.replicas[0].stages)
    return [d * num_stages + s for s in range(num_stages) for d in range(len(home.replicas))]


def _in_turn(lists: Sequence[Sequence[int]]) -> tuple[int, ...]:
    longest = max(len(each) for each in lists)
    return tuple(each[place] for place in range(longest) for each in lists if place < len(each))
