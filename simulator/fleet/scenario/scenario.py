"""Scenarios in YAML: a job, a fleet, what breaks, who competes, in the form of :func:`scenario_schema`.

The schema says what may stand where; the rest is said here: devices that the fleet has, and numbers that must go
together. Every error says where in the file it is and what is allowed there.
"""

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from evenkeel.layouts.json_schema import complaint
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.simulator.fleet.cost.iteration import (
    NETWORK_BYTES_PER_SECOND,
    NODE_BYTES_PER_SECOND,
    fleet_cost,
)
from evenkeel.simulator.fleet.faults.detection import DetectorModel
from evenkeel.simulator.fleet.faults.faults import Fault, FaultProcess, LinkFault, Spacing, drawn_faults
from evenkeel.simulator.fleet.faults.topology import Scope, Topology
from evenkeel.simulator.fleet.scenario.models import MODELS, TransformerShape
from evenkeel.simulator.fleet.scenario.schema import MOST_DEVICES, scenario_schema
from evenkeel.simulator.fleet.strategy import Costs

_MOST_FAULTS = 1_000_000
_T = TypeVar("_T")
_Section = Mapping[str, Any]


class ScenarioError(ValueError):
    """The scenario cannot be used; the message says where and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that a simulated comparison needs.

    Attributes:
        name: For people.
        seed: Of the drawn faults and of the detector's misses and estimates.
        duration_seconds: Simulated time.
        home: Full shape of the job; spares are its standbys.
        cost: Cost model.
        topology: The fleet.
        faults: Faults named in the file.
        processes: Faults to draw.
        detector: How they are noticed.
        costs: Constants.
        strategies: Names of the systems to run.
        link_faults: Slow links named in the file.
        noise: Relative standard deviation of each operation.
    """

    name: str
    seed: int
    duration_seconds: float
    home: Layout
    cost: CostModel
    topology: Topology
    faults: tuple[Fault, ...]
    processes: tuple[FaultProcess, ...]
    detector: DetectorModel
    costs: Costs
    strategies: tuple[str, ...]
    link_faults: tuple[LinkFault, ...] = ()
    noise: float = 0.0

    def all_faults(self, seed: int | None = None) -> tuple[Fault, ...]:
        """Named and drawn faults, in order of time."""
        drawn = drawn_faults(
            self.processes,
            self.topology,
            duration_seconds=self.duration_seconds,
            seed=self.seed if seed is None else seed,
        )
        return tuple(sorted((*self.faults, *drawn), key=lambda fault: (fault.at_seconds, fault.devices)))


def _at(path: str, build: Callable[[], _T]) -> _T:
    """What ``build`` makes; its complaint with the path in front."""
    try:
        return build()
    except ScenarioError:
        raise
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from error


def _numbers(section: _Section, *names: str) -> dict[str, float]:
    """Those of the numbers that are there."""
    return {name: float(section[name]) for name in names if name in section}


def _model(model: str | _Section) -> TransformerShape:
    if isinstance(model, str):
        return MODELS[model]
    if model["hidden"] < model["heads"]:
        raise ValueError(f"model: {model['hidden']} hidden units cannot be cut into {model['heads']} heads")
    return TransformerShape(**{"kv_heads": int(model["heads"]), **{name: int(each) for name, each in model.items()}})


def _job(job: _Section, num_spares: int) -> tuple[Layout, CostModel]:
    spec = _model(job["model"]).spec()
    tensor, pipeline, data = (int(job[degree]) for degree in ("tensor", "pipeline", "data"))
    quota, num_ranks = int(job["micro_batches"]), tensor * pipeline * data
    if num_ranks + num_spares > MOST_DEVICES or quota * data > MOST_DEVICES:
        raise ValueError(f"{num_ranks + num_spares} devices, {quota * data} micro-batches: each at most {MOST_DEVICES}")
    bare = uniform_layout(
        num_blocks=len(spec.blocks), tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=quota * data
    )
    home = replace(bare, standbys=tuple(range(num_ranks, num_ranks + num_spares)))
    tokens = float(job.get("tokens", 8192.0))
    workload = Workload(
        seconds_per_flop=1.0 / job.get("flops_per_second", 160e12),
        tokens=tokens,
        sum_of_squares=tokens * job.get("mean_length", tokens / 4.0),
        fixed_seconds=float(job.get("fixed_seconds", 0.0)),
        transfer_seconds=float(job.get("transfer_seconds", 0.002)),
    )
    return home, fleet_cost(
        spec,
        workload,
        node_bytes_per_second=float(job.get("node_bytes_per_second", NODE_BYTES_PER_SECOND)),
        network_bytes_per_second=float(job.get("network_bytes_per_second", NETWORK_BYTES_PER_SECOND)),
    )


def _seconds(section: _Section, hours: float) -> dict[str, float]:
    """When something begins, and how long it lasts."""
    if section["at_hours"] >= hours:
        raise ValueError(
            f"at_hours: {section['at_hours']:g} is not before the scenario's end, so nobody would see it; "
            f"give less than {hours:g}, or more hours to the scenario"
        )
    return {
        "at_seconds": 3600.0 * section["at_hours"],
        "duration_seconds": 3600.0 * section.get("hours", math.inf),
    }


def _known(devices: Sequence[int], topology: Topology) -> tuple[int, ...]:
    if not all(device < topology.num_devices for device in devices):
        raise ValueError(f"the fleet has devices 0 to {topology.num_devices - 1}, not {max(devices)}")
    return tuple(map(int, devices))


def _fault(section: _Section, topology: Topology, hours: float) -> Fault:
    named = [key for key in ("devices", "node", "rack") if key in section]
    if len(named) != 1:
        raise ValueError(f"name devices: [..], node: or rack:, one of them, not {', '.join(named) or 'none'}")
    devices = section.get("devices", ())
    for scope in (Scope.NODE, Scope.RACK):
        if scope in section:
            size = len(topology.members(scope, 0))
            devices = topology.members(scope, int(section[scope]) * size)
            if not devices:
                raise ValueError(
                    f"no {scope} {section[scope]:g}; the fleet has 0 to {(topology.num_devices - 1) // size}"
                )
    return Fault(
        **_seconds(section, hours),
        devices=_known(devices, topology),
        throughput=float(section.get("throughput", 0.0)),
        silent=section.get("silent", False),
    )


def _link_fault(section: _Section, topology: Topology, hours: float) -> LinkFault:
    one, other = _known(section["devices"], topology)
    return LinkFault(**_seconds(section, hours), devices=(one, other), factor=float(section["factor"]))


def _process(section: _Section, hours: float) -> FaultProcess:
    repair, most = section.get("repair_hours"), section.get("max_count")
    if hours / section["every_hours"] > _MOST_FAULTS and (most is None or most > _MOST_FAULTS):
        expected = hours / section["every_hours"]
        raise ValueError(f"every_hours makes some {expected:.3g} faults; give more hours between, or max_count")
    return FaultProcess(
        every_seconds=3600.0 * section["every_hours"],
        scope=Scope(section.get("scope", Scope.DEVICE)),
        throughputs=tuple(map(float, section.get("throughputs", (0.0,)))),
        mean_repair_seconds=None if repair is None else 3600.0 * repair,
        spacing=Spacing(section.get("spacing", Spacing.EXPONENTIAL)),
        repair_spacing=Spacing(section.get("repair_spacing", Spacing.EXPONENTIAL)),
        max_count=None if most is None else int(most),
        silent=section.get("silent", False),
    )


def _costs(section: _Section) -> Costs:
    return Costs(
        transition=TransitionCosts(
            **{"group_seconds": 2.0, "bytes_per_second": 1e10, **_numbers(section, "group_seconds", "bytes_per_second")}
        ),
        restart_seconds=float(section.get("restart_seconds", 180.0)),
        checkpoint_seconds=float(section.get("checkpoint_seconds", 1800.0)),
        device_bytes=float(section.get("device_bytes", 64e9)),
        replacement_seconds=float(section.get("replacement_seconds", 0.0)),
    )


def _detector(section: _Section) -> DetectorModel:
    return DetectorModel(**{"stop_seconds": 2.0, "slow_seconds": 30.0, **_numbers(section, *section)})


def scenario_of(data: object, known_strategies: Sequence[str]) -> Scenario:
    """A scenario from what a YAML file holds.

    Args:
        data: The parsed file.
        known_strategies: Names that ``strategies`` may use; all of them when it is left out.

    Raises:
        ScenarioError: Something is missing, unknown or out of range.
    """
    flaw = complaint(scenario_schema(known_strategies), data)
    if flaw:
        raise ScenarioError(flaw)
    assert isinstance(data, Mapping)
    file: _Section = data
    fleet, hours = file.get("fleet", {}), float(file["hours"])
    home, cost = _at("job", lambda: _job(file["job"], int(fleet.get("spares", 0))))
    topology = Topology(
        num_devices=len(home.ranks) + len(home.standbys),
        devices_per_node=int(fleet.get("devices_per_node", 8)),
        nodes_per_rack=int(fleet.get("nodes_per_rack", 4)),
    )

    def each(key: str, build: Callable[[_Section], _T]) -> tuple[_T, ...]:
        found = enumerate(file.get(key, ()))
        return tuple([_at(f"{key}[{index}]", lambda one=one: build(one)) for index, one in found])  # type: ignore[misc]

    return Scenario(
        name=file.get("name", "scenario"),
        seed=int(file.get("seed", 0)),
        duration_seconds=3600.0 * hours,
        home=home,
        cost=cost,
        topology=topology,
        faults=each("faults", lambda one: _fault(one, topology, hours)),
        processes=each("processes", lambda one: _process(one, hours)),
        detector=_at("detector", lambda: _detector(file.get("detector", {}))),
        costs=_costs(file.get("costs", {})),
        strategies=tuple(file.get("strategies", known_strategies)),
        link_faults=each("links", lambda one: _link_fault(one, topology, hours)),
        noise=float(file["job"].get("noise", 0.0)),
    )


class _Loader(yaml.SafeLoader):
    """YAML whose keys are there once, and which reads 1e10 as a number, as everybody else does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping; a key that is there twice is an error."""
        seen: set[object] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in seen and name is not None:
                raise yaml.MarkedYAMLError(problem=f"the key {name!r} is there twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def load_scenario(path: Path, known_strategies: Sequence[str]) -> Scenario:
    """Reads a scenario file.

    Raises:
        ScenarioError: The file cannot be read or used.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ScenarioError(f"cannot read {path}: {error.strerror}") from error
    except RecursionError as error:
        raise ScenarioError(f"{path} is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ScenarioError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    try:
        return scenario_of(data, known_strategies)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from error
