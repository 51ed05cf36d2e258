"""What breaks when: faults from a trace, or drawn from rates with a seed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from evenkeel.planning.costs.links import SlowLink
from evenkeel.simulator.fleet.faults.topology import Scope, Topology


class Spacing(StrEnum):
    """How the moments of a drawn process lie."""

    EXPONENTIAL = "exponential"
    REGULAR = "regular"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Some devices run slower, or not at all, for a while.

    Attributes:
        at_seconds: When it begins.
        devices: Whom it hits.
        throughput: What they still do, 1 = healthy, 0 = fail-stop.
        duration_seconds: Until they are back; infinite when nobody repairs them.
        silent: Nobody reports it: a host that lost power, a hang. It shows by what does not come any more.
    """

    at_seconds: float
    devices: tuple[int, ...]
    throughput: float = 0.0
    duration_seconds: float = math.inf
    silent: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_seconds) and self.at_seconds >= 0.0):
            raise ValueError(f"a fault at {self.at_seconds} s: give a moment of at least 0")
        if not 0.0 <= self.throughput < 1.0:
            raise ValueError(f"a fault with throughput {self.throughput}: give at least 0 (dead) and less than 1")
        if not self.duration_seconds > 0.0:
            raise ValueError(f"a fault that lasts {self.duration_seconds} s: give more than 0, or leave it out")
        if not self.devices:
            raise ValueError("a fault without devices: name at least one")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultProcess:
    """Faults that come again and again, somewhere in the fleet.

    Attributes:
        every_seconds: Mean time between two of them, fleet-wide.
        scope: What each hits.
        throughputs: What is left, drawn evenly; (0,) is fail-stop.
        mean_repair_seconds: Mean of the time to repair; None = never.
        spacing: Exponential (memoryless) or regular.
        repair_spacing: The same for the time to repair; regular = always the mean.
        max_count: At most so many; None = no limit.
        silent: Nobody reports these faults.
    """

    every_seconds: float
    scope: Scope = Scope.DEVICE
    throughputs: tuple[float, ...] = (0.0,)
    mean_repair_seconds: float | None = None
    spacing: Spacing = Spacing.EXPONENTIAL
    repair_spacing: Spacing = Spacing.EXPONENTIAL
    max_count: int | None = None
    silent: bool = False

    def __post_init__(self) -> None:
        if not self.every_seconds > 0.0:
            raise ValueError(f"every_seconds is {self.every_seconds}: it must be above 0")
        if not self.throughputs or not all(0.0 <= p < 1.0 for p in self.throughputs):
            raise ValueError(f"throughputs {self.throughputs}: each at least 0 (dead) and less than 1, at least one")
        if self.mean_repair_seconds is not None and not self.mean_repair_seconds > 0.0:
            raise ValueError(f"mean_repair_seconds is {self.mean_repair_seconds}: above 0, or leave it out")


def drawn_faults(
    processes: Sequence[FaultProcess], topology: Topology, *, duration_seconds: float, seed: int
) -> tuple[Fault, ...]:
    """Faults of a run in order of time: a fault hits a device that no earlier one holds at that moment.

    Each process has its own stream of random numbers, so adding one does not move the moments of the others.
    """
    moments: list[tuple[float, int, np.random.Generator]] = []
    for index, process in enumerate(processes):
        rng = np.random.default_rng((seed, index))
        at, count = 0.0, 0
        while process.max_count is None or count < process.max_count:
            regular = process.spacing is Spacing.REGULAR
            at += process.every_seconds if regular else float(rng.exponential(process.every_seconds))
            if at >= duration_seconds:
                break
            moments.append((at, index, rng))
            count += 1
    faults: list[Fault] = []
    until = np.zeros(topology.num_devices)
    for at, index, rng in sorted(moments, key=lambda moment: moment[:2]):
        process = processes[index]
        free = np.flatnonzero(until <= at)
        if not len(free):
            continue
        hit = topology.members(process.scope, int(rng.choice(free)))
        devices = tuple(device for device in hit if until[device] <= at)
        lasts = _repair_seconds(process, rng)
        throughput = float(process.throughputs[int(rng.integers(len(process.throughputs)))])
        until[list(devices)] = at + lasts
        faults.append(
            Fault(
                at_seconds=at,
                devices=devices,
                throughput=throughput,
                duration_seconds=lasts,
                silent=process.silent,
            )
        )
    return tuple(faults)


def _repair_seconds(process: FaultProcess, rng: np.random.Generator) -> float:
    mean = process.mean_repair_seconds
    if mean is None:
        return math.inf
    return mean if process.repair_spacing is Spacing.REGULAR else max(1e-3, float(rng.exponential(mean)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFault:
    """Transfers between two devices take longer for a while.

    Attributes:
        at_seconds: When it begins.
        devices: The two ends.
        factor: How much longer a transfer takes, above 1.
        duration_seconds: Until the link is as before; infinite when nobody repairs it.
    """

    at_seconds: float
    devices: tuple[int, int]
    factor: float
    duration_seconds: float = math.inf

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_seconds) and self.at_seconds >= 0.0):
            raise ValueError(f"a link fault at {self.at_seconds} s: give a moment of at least 0")
        if len(self.devices) != 2 or self.devices[0] == self.devices[1]:
            raise ValueError(f"a link between devices {list(self.devices)}: name two different ones")
        if not (math.isfinite(self.factor) and self.factor > 1.0):
            raise ValueError(f"a link fault with factor {self.factor}: give more than 1")
        if not self.duration_seconds > 0.0:
            raise ValueError(f"a link fault that lasts {self.duration_seconds} s: give more than 0, or leave it out")

    @property
    def link(self) -> SlowLink:
        """The link while it is slow."""
        return SlowLink(ranks=self.devices, factor=self.factor)


class Truth:
    """The speed of every device as faults come and go: the worst of those that hold it counts."""

    def __init__(self, num_devices: int) -> None:
        self._active: dict[int, list[float]] = {}
        self._healthy = dict.fromkeys(range(num_devices), 1.0)

    def begin(self, fault: Fault) -> None:
        """A fault holds its devices."""
        for device in fault.devices:
            self._active.setdefault(device, []).append(fault.throughput)

    def end(self, fault: Fault) -> None:
        """A fault that has begun lets its devices go."""
        for device in fault.devices:
            held = self._active[device]
            held.remove(fault.throughput)
            if not held:
                del self._active[device]

    def throughput(self, device: int) -> float:
        """Speed of a device now; 0 = dead."""
        return min(self._active.get(device, (1.0,)))

    def ill(self) -> dict[int, float]:
        """Speed of each device that some fault holds."""
        return {device: min(held) for device, held in self._active.items()}

    def dead(self) -> frozenset[int]:
        """Devices that do nothing."""
        return frozenset(device for device, held in self._active.items() if min(held) <= 0.0)

    def live(self) -> dict[int, float]:
        """Speed of each device that is not dead. A copy of the table of healthy devices: no loop over them."""
        found = dict(self._healthy)
        for device, p in self.ill().items():
            if p > 0.0:
                found[device] = p
            else:
                del found[device]
        return found


def checked_faults(faults: Iterable[Fault], topology: Topology) -> tuple[Fault, ...]:
    """The faults in order of time.

    Raises:
        ValueError: A fault names a device that the fleet does not have.
    """
    ordered = tuple(sorted(faults, key=lambda fault: (fault.at_seconds, fault.devices)))
    for fault in ordered:
        outside = [device for device in fault.devices if not 0 <= device < topology.num_devices]
        if outside:
            raise ValueError(
                f"the fault at {fault.at_seconds:g} s names devices {outside}; "
                f"the fleet has 0 to {topology.num_devices - 1}"
            )
    return ordered
