"""Scenarios in YAML: a job, a fleet, what breaks, who competes. The schema is in ``docs/simulator.md``.

Every error says where in the file it is and what is allowed there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from layouts.layout import Layout, uniform_layout
from services.scheduler.planning.cost_model import CostModel, Workload
from services.scheduler.planning.price import TransitionCosts
from simulator.fleet.detection import DetectorModel
from simulator.fleet.faults import Fault, FaultProcess, LinkFault, Spacing, drawn_faults
from simulator.fleet.models import MODELS, TransformerShape
from simulator.fleet.power import PowerBoost
from simulator.fleet.strategy import Costs
from simulator.fleet.topology import Scope, Topology

_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)


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


class _Section:
    """A mapping of the file that knows its path, and which of its keys were read."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise ScenarioError(f"{path or 'the file'}: expected keys and values, found {value!r}")
        self._values, self.path = value, path
        self._read: set[object] = set()

    def at(self, key: str) -> str:
        """Path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Whether the file names a key."""
        return key in self._values

    def raw(self, key: str, default: object) -> Any:
        """The value as YAML gives it."""
        self._read.add(key)
        return self._values.get(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number.

        Raises:
            ScenarioError: It is missing or is none.
        """
        value = self.raw(key, default)
        if value is None:
            raise ScenarioError(f"{self.at(key)}: missing, give a number")
        if isinstance(value, str):
            # YAML 1.1 reads 1e10 as text; everybody else reads a number.
            try:
                value = float(value)
            except ValueError:
                raise ScenarioError(f"{self.at(key)}: expected a number, found {value!r}") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ScenarioError(f"{self.at(key)}: expected a number, found {value!r}")
        return float(value)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self.number(key, default)
        if value != int(value):
            raise ScenarioError(f"{self.at(key)}: expected a whole number, found {value:g}")
        return int(value)

    def flag(self, key: str) -> bool:
        """True or false; false when it is not there."""
        value = self.raw(key, False)
        if not isinstance(value, bool):
            raise ScenarioError(f"{self.at(key)}: expected true or false, found {value!r}")
        return value

    def choice(self, key: str, kind: type[_E], default: _E) -> _E:
        """One of a closed set."""
        value = self.raw(key, default)
        if value not in list(kind):
            raise ScenarioError(f"{self.at(key)}: {value!r} is none of {', '.join(kind)}")
        return kind(value)

    def section(self, key: str) -> "_Section":
        """A mapping below; empty when it is not there."""
        return _Section(self.raw(key, {}), self.at(key))

    def sections(self, key: str) -> list["_Section"]:
        """A list of mappings below."""
        values = self.raw(key, [])
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise ScenarioError(f"{self.at(key)}: expected a list, found {values!r}")
        return [_Section(value, f"{self.at(key)}[{index}]") for index, value in enumerate(values)]

    def built(self, build: Callable[[], _T]) -> _T:
        """What ``build`` makes of this section; its complaint with the path in front, and none about unknown keys."""
        try:
            made = build()
        except ScenarioError:
            raise
        except ValueError as error:
            raise ScenarioError(f"{self.path}: {error}") from error
        unknown = [str(key) for key in self._values if key not in self._read]
        if unknown:
            known = ", ".join(sorted(map(str, self._read)))
            raise ScenarioError(f"{self.path or 'the file'}: unknown {', '.join(unknown)}; known here: {known}")
        return made


def _model(job: _Section) -> TransformerShape:
    value = job.raw("model", None)
    if isinstance(value, Mapping):
        shape = job.section("model")
        return shape.built(
            lambda: TransformerShape(
                num_layers=shape.whole("num_layers"),
                hidden=shape.whole("hidden"),
                heads=shape.whole("heads"),
                kv_heads=shape.whole("kv_heads", shape.whole("heads")),
                feed_forward=shape.whole("feed_forward"),
            )
        )
    if value not in MODELS:
        raise ScenarioError(f"{job.at('model')}: {value!r} is none of {', '.join(MODELS)}, nor a shape")
    return MODELS[value]


def _job(job: _Section, num_spares: int) -> tuple[Layout, CostModel]:
    shape = _model(job)
    spec = shape.spec()
    data, quota = job.whole("data"), job.whole("micro_batches")
    bare = uniform_layout(
        num_blocks=len(spec.blocks),
        tensor=job.whole("tensor"),
        pipeline=job.whole("pipeline"),
        data=data,
        num_micro_batches=quota * data,
    )
    num_ranks = len(bare.ranks)
    home = Layout(
        num_blocks=bare.num_blocks,
        replicas=bare.replicas,
        schedule=bare.schedule,
        standbys=tuple(range(num_ranks, num_ranks + num_spares)),
    )
    tokens = job.number("tokens", 8192.0)
    workload = Workload(
        seconds_per_flop=1.0 / job.number("flops_per_second", 160e12),
        tokens=tokens,
        sum_of_squares=tokens * job.number("mean_length", tokens / 4.0),
        fixed_seconds=job.number("fixed_seconds", 0.0),
        transfer_seconds=job.number("transfer_seconds", 0.002),
    )
    return home, CostModel(spec, workload)


def _fault(section: _Section, topology: Topology) -> Fault:
    devices = section.raw("devices", None)
    for scope in (Scope.NODE, Scope.RACK):
        if section.has(scope):
            size = len(topology.members(scope, 0))
            devices = topology.members(scope, section.whole(scope) * size)
    whole = isinstance(devices, Sequence) and all(type(device) is int for device in devices)
    if not devices or not whole or not all(0 <= device < topology.num_devices for device in devices):
        raise ScenarioError(
            f"{section.path}: name devices: [..], node: or rack: of the fleet (devices 0 to {topology.num_devices - 1})"
        )
    return Fault(
        at_seconds=3600.0 * section.number("at_hours"),
        devices=tuple(devices),
        throughput=section.number("throughput", 0.0),
        duration_seconds=3600.0 * section.number("hours") if section.has("hours") else math.inf,
        silent=section.flag("silent"),
    )


def _link_fault(section: _Section, topology: Topology) -> LinkFault:
    devices = section.raw("devices", None)
    two = isinstance(devices, Sequence) and len(devices) == 2 and all(type(device) is int for device in devices)
    if not two or not all(0 <= device < topology.num_devices for device in devices):
        raise ScenarioError(
            f"{section.at('devices')}: name the two ends, devices 0 to {topology.num_devices - 1}, found {devices!r}"
        )
    return LinkFault(
        at_seconds=3600.0 * section.number("at_hours"),
        devices=(devices[0], devices[1]),
        factor=section.number("factor"),
        duration_seconds=3600.0 * section.number("hours") if section.has("hours") else math.inf,
    )


def _process(section: _Section) -> FaultProcess:
    throughputs = section.raw("throughputs", [0.0])
    if not isinstance(throughputs, list) or not all(isinstance(p, int | float) for p in throughputs):
        raise ScenarioError(f"{section.at('throughputs')}: expected a list of numbers, found {throughputs!r}")
    return FaultProcess(
        every_seconds=3600.0 * section.number("every_hours"),
        scope=section.choice("scope", Scope, Scope.DEVICE),
        throughputs=tuple(map(float, throughputs)),
        mean_repair_seconds=3600.0 * section.number("repair_hours") if section.has("repair_hours") else None,
        spacing=section.choice("spacing", Spacing, Spacing.EXPONENTIAL),
        repair_spacing=section.choice("repair_spacing", Spacing, Spacing.EXPONENTIAL),
        max_count=section.whole("max_count") if section.has("max_count") else None,
        silent=section.flag("silent"),
    )


def _costs(section: _Section, power: PowerBoost | None) -> Costs:
    return Costs(
        transition=TransitionCosts(
            group_seconds=section.number("group_seconds", 2.0),
            bytes_per_second=section.number("bytes_per_second", 1e10),
        ),
        restart_seconds=section.number("restart_seconds", 180.0),
        checkpoint_seconds=section.number("checkpoint_seconds", 1800.0),
        device_bytes=section.number("device_bytes", 64e9),
        replacement_seconds=section.number("replacement_seconds", 0.0),
        power=power,
    )


def _power(section: _Section) -> PowerBoost:
    fixed = PowerBoost()
    return PowerBoost(
        limit=section.number("limit"),
        linear_loss=section.number("linear_loss", fixed.linear_loss),
        quadratic_loss=section.number("quadratic_loss", fixed.quadratic_loss),
    )


def _detector(section: _Section) -> DetectorModel:
    return DetectorModel(
        stop_seconds=section.number("stop_seconds", 2.0),
        silent_seconds=section.number("silent_seconds") if section.has("silent_seconds") else None,
        slow_seconds=section.number("slow_seconds", 30.0),
        slow_miss_probability=section.number("slow_miss_probability", 0.0),
        min_slowdown=section.number("min_slowdown", 0.0),
        estimate_error=section.number("estimate_error", 0.0),
        link_seconds=section.number("link_seconds") if section.has("link_seconds") else None,
    )


def _strategies(file: _Section, known: Sequence[str]) -> tuple[str, ...]:
    chosen = file.raw("strategies", list(known))
    if not isinstance(chosen, list) or not chosen:
        raise ScenarioError(f"strategies: expected a list of names, found {chosen!r}")
    strangers = [str(name) for name in chosen if name not in known]
    if strangers:
        raise ScenarioError(f"strategies: unknown {', '.join(strangers)}; known: {', '.join(known)}")
    return tuple(chosen)


def scenario_of(data: object, known_strategies: Sequence[str]) -> Scenario:
    """A scenario from what a YAML file holds.

    Args:
        data: The parsed file.
        known_strategies: Names that ``strategies`` may use; all of them when it is left out.

    Raises:
        ScenarioError: Something is missing, unknown or out of range.
    """
    file = _Section(data, "")

    def build() -> Scenario:
        job, fleet, hours = file.section("job"), file.section("fleet"), file.number("hours")
        if hours <= 0.0:
            raise ScenarioError(f"{file.at('hours')}: {hours:g} is too short, give more than 0")
        num_spares, noise = fleet.whole("spares", 0), job.number("noise", 0.0)
        if not 0.0 <= noise <= 1.0:
            raise ScenarioError(f"{job.at('noise')}: {noise:g} is no relative deviation, give 0 to 1")
        home, cost = job.built(lambda: _job(job, num_spares))
        topology = fleet.built(
            lambda: Topology(
                num_devices=len(home.ranks) + len(home.standbys),
                devices_per_node=fleet.whole("devices_per_node", 8),
                nodes_per_rack=fleet.whole("nodes_per_rack", 4),
            )
        )
        detector, costs = file.section("detector"), file.section("costs")
        power = None
        if file.has("power"):
            drawn = file.section("power")
            power = drawn.built(lambda: _power(drawn))
        return Scenario(
            name=str(file.raw("name", "scenario")),
            seed=file.whole("seed", 0),
            duration_seconds=3600.0 * hours,
            home=home,
            cost=cost,
            topology=topology,
            faults=tuple(
                each.built(lambda each=each: _fault(each, topology))  # type: ignore[misc]
                for each in file.sections("faults")
            ),
            processes=tuple(
                each.built(lambda each=each: _process(each))  # type: ignore[misc]
                for each in file.sections("processes")
            ),
            detector=detector.built(lambda: _detector(detector)),
            costs=costs.built(lambda: _costs(costs, power)),
            strategies=_strategies(file, known_strategies),
            link_faults=tuple(
                each.built(lambda each=each: _link_fault(each, topology))  # type: ignore[misc]
                for each in file.sections("links")
            ),
            noise=noise,
        )

    return file.built(build)


def load_scenario(path: Path, known_strategies: Sequence[str]) -> Scenario:
    """Reads a scenario file.

    Raises:
        ScenarioError: The file cannot be read or used.
    """
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ScenarioError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is no YAML: {error}") from error
    try:
        return scenario_of(data, known_strategies)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from error
