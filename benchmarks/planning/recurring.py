"""256 devices, failures that recur and are repaired, 10,000 iterations: ``python -m benchmarks.planning.recurring``.

ResiHP's large run (arXiv 2605.06374): LLaMA-2 70B, TP 4, DP 4, PP 16; there it was 1.11 x strengthened Oobleck. The
detector is ours as measured, for all systems. Failures are devices that die or slow down, nodes that go silent, and
links that slow down; every system sees the same. Intensities are ours: the paper names none. Simulated.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planning.cases import Case, large_case
from benchmarks.planning.tables import percent, table, write_json
from simulator.baselines import STRATEGIES
from simulator.fleet.detection import measured_detector
from simulator.fleet.faults import Fault, FaultProcess, LinkFault, drawn_faults
from simulator.fleet.operation import operation_of, operation_seconds
from simulator.fleet.simulation import FleetSimulation
from simulator.fleet.strategy import Costs
from simulator.fleet.topology import Scope, Topology

SYSTEMS = ("strengthened Oobleck", "ResiHP", "Evenkeel", "Evenkeel + sequence mix")
LINK_FACTORS = (5.0, 20.0)
INTENSITIES = {"light": 1.0, "heavy": 3.0}
"""Times a death an hour, a slowdown every two hours, a silent node every twelve, a slow link every four."""


def failures(case: Case, seconds: float, factor: float, seed: int) -> tuple[tuple[Fault, ...], tuple[LinkFault, ...]]:
    """Devices, nodes and links that fail and are repaired after three hours on average (nodes one)."""
    topology = Topology(num_devices=case.num_devices)
    processes = [
        FaultProcess(every_seconds=3600.0 / factor, mean_repair_seconds=10_800.0),
        FaultProcess(every_seconds=7200.0 / factor, mean_repair_seconds=10_800.0, throughputs=(0.65, 0.45, 0.3)),
        FaultProcess(every_seconds=43_200.0 / factor, mean_repair_seconds=3600.0, scope=Scope.NODE, silent=True),
    ]
    faults = drawn_faults(processes, topology, duration_seconds=seconds, seed=seed)
    rng = np.random.default_rng((seed, 77))
    links, at = [], 0.0
    while (at := at + float(rng.exponential(14_400.0 / factor))) < seconds:
        replica = case.home.replicas[int(rng.integers(len(case.home.replicas)))]
        border = int(rng.integers(len(replica.stages) - 1))
        shard = int(rng.integers(len(replica.stages[border].ranks)))
        links.append(
            LinkFault(
                at_seconds=at,
                devices=(replica.stages[border].ranks[shard], replica.stages[border + 1].ranks[shard]),
                factor=float(rng.choice(LINK_FACTORS)),
                duration_seconds=max(1.0, float(rng.exponential(10_800.0))),
            )
        )
    return faults, tuple(links)


def run(systems: Sequence[str], num_iterations: int, noise: float, seed: int, intensities: Sequence[str]) -> list[Any]:
    """The tables, printed and as data."""
    case = large_case()
    iteration = operation_seconds(case.cost, operation_of(case.home), case.healthy)
    seconds = num_iterations * iteration
    rows = []
    for intensity in intensities:
        faults, links = failures(case, seconds, INTENSITIES[intensity], seed)
        lines = []
        for system in systems:
            started = time.process_time()
            result = FleetSimulation(
                home=case.home,
                cost=case.cost,
                topology=Topology(num_devices=case.num_devices),
                faults=faults,
                link_faults=links,
                noise=noise,
                detector=measured_detector(iteration),
                costs=Costs(),
                strategy=STRATEGIES[system],
                duration_seconds=seconds,
                seed=seed,
            ).run()
            row: dict[str, Any] = {
                "intensity": intensity,
                "system": system,
                "throughput": result.throughput,
                "bound": result.bound,
                "num_faults": len(faults),
                "num_link_faults": len(links),
                "num_answers": result.num_answers,
                "paused_seconds": result.paused_seconds,
                "stopped_seconds": result.stopped_seconds,
                "cpu_seconds": time.process_time() - started,
            }
            rows.append(row)
            lines.append(
                [
                    system,
                    percent(result.throughput),
                    percent(result.of_bound),
                    f"{result.paused_seconds / 3600:.2f}",
                    f"{result.stopped_seconds / 3600:.2f}",
                    str(result.num_answers),
                    f"{row['cpu_seconds']:.0f}",
                ]
            )
        header = ["system", "throughput, %", "of bound, %", "paused h", "stopped h", "changes", "CPU s"]
        title = f"## 256 devices, {num_iterations:,} iterations, {intensity}: {len(faults)} faults, {len(links)} links"
        print(f"{title}\n\n{table(header, lines)}\n\nBound {percent(rows[-1]['bound'])} %.\n", flush=True)
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=list(STRATEGIES), default=list(SYSTEMS))
    parser.add_argument("--intensities", nargs="+", choices=list(INTENSITIES), default=list(INTENSITIES))
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--noise", type=float, default=0.0, help="relative deviation of each operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/planning_recurring.json"))
    chosen = parser.parse_args()
    rows = run(chosen.systems, chosen.iterations, chosen.noise, chosen.seed, chosen.intensities)
    write_json(chosen.json, rows)


if __name__ == "__main__":
    main()
