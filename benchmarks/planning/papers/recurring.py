"""256 devices, failures that recur and are repaired: ``python -m benchmarks.planning.papers.recurring``.

ResiHP's large run (arXiv 2605.06374): LLaMA-2 70B, TP 4, DP 4, PP 16; there it was 1.11 x strengthened Oobleck. The
detector is ours as measured, for all systems. Failures are devices that die or slow down, nodes that go silent, and
links that slow down; every system sees the same. Intensities are ours: the paper names none. Rows that the JSON file
has already are not run again, so a run that was stopped goes on where it was. Simulated.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planning.solver.cases import Case, large_case
from benchmarks.planning.tables import percent, table, write_json
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.faults.detection import measured_detector
from evenkeel.simulator.fleet.faults.faults import Fault, FaultProcess, LinkFault, drawn_faults
from evenkeel.simulator.fleet.faults.topology import Scope, Topology
from evenkeel.simulator.fleet.operation.operation import operation_of, operation_seconds
from evenkeel.simulator.fleet.simulation import FleetSimulation
from evenkeel.simulator.fleet.strategy import Costs

SYSTEMS = ("strengthened Oobleck", "Evenkeel")
LINK_FACTORS = (5.0, 20.0)
INTENSITIES = {"light": 1.0, "heavy": 3.0, "severe": 8.0}
"""Times a death an hour, a slowdown every two hours, a silent node every twelve, a slow link every four."""

HEADER = (
    "system",
    "throughput, %",
    "of bound, %",
    "/ S-Oobleck",
    "bound / it",
    "paused, %",
    "waiting, %",
    "plans",
    "CPU s",
)
Row = dict[str, Any]


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


def run_one(
    case: Case,
    system: str,
    faults: Sequence[Fault],
    links: Sequence[LinkFault],
    *,
    seconds: float,
    noise: float,
    seed: int,
) -> Row:
    """One run of one system, as plain data."""
    started = time.process_time()
    iteration = operation_seconds(case.cost, operation_of(case.home), case.healthy)
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
    return {
        "throughput": result.throughput,
        "bound": result.bound,
        "num_faults": len(faults),
        "num_link_faults": len(links),
        "num_answers": result.num_answers,
        "paused": result.paused_seconds / seconds,
        "stopped": result.stopped_seconds / seconds,
        "aborted_at_seconds": result.aborted_at_seconds,
        "cpu_seconds": time.process_time() - started,
    }


def lines_of(rows: Sequence[Row]) -> list[list[str]]:
    """Rows of one intensity as table lines; how far a system is ahead of strengthened Oobleck, if that has run."""
    ran = [row["throughput"] for row in rows if row["system"] == SYSTEMS[0]]
    return [
        [
            row["system"],
            percent(row["throughput"]),
            percent(row["throughput"] / row["bound"]),
            f"{row['throughput'] / ran[0]:.2f} x" if ran else "-",
            f"{row['bound'] / ran[0]:.2f} x" if ran else "-",
            percent(row["paused"]),
            percent(row["stopped"]),
            str(row["num_answers"]),
            f"{row['cpu_seconds']:.0f}",
        ]
        for row in rows
    ]


def run(
    systems: Sequence[str], num_iterations: int, noise: float, seed: int, intensities: Sequence[str], path: Path
) -> None:
    """Runs what the file does not have yet, keeps each row in it, prints a table per intensity."""
    case = large_case()
    seconds = num_iterations * operation_seconds(case.cost, operation_of(case.home), case.healthy)
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    for intensity in intensities:
        faults, links = failures(case, seconds, INTENSITIES[intensity], seed)
        shown = []
        for system in systems:
            key: Row = {
                "intensity": intensity,
                "system": system,
                "num_iterations": num_iterations,
                "noise": noise,
                "seed": seed,
            }
            row = next((row for row in rows if key.items() <= row.items()), None)
            if row is None:
                row = key | run_one(case, system, faults, links, seconds=seconds, noise=noise, seed=seed)
                rows.append(row)
                write_json(path, rows)
            shown.append(row)
        title = f"## {intensity}: 256 devices, {num_iterations:,} iterations, {len(faults)} faults, {len(links)} links"
        bound = percent(shown[-1]["bound"])
        print(f"{title}\n\n{table(HEADER, lines_of(shown))}\n\nBound {bound} %.\n", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=list(STRATEGIES), default=list(SYSTEMS))
    parser.add_argument("--intensities", nargs="+", choices=list(INTENSITIES), default=list(INTENSITIES))
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--noise", type=float, default=0.0, help="relative deviation of each operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/planning/recurring.json"))
    chosen = parser.parse_args()
    run(chosen.systems, chosen.iterations, chosen.noise, chosen.seed, chosen.intensities, chosen.json)


if __name__ == "__main__":
    main()
