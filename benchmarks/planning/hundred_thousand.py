"""98,304 devices that fail every 18 minutes: ``python -m benchmarks.planning.hundred_thousand``.

FT-HSDP (arXiv 2602.00277) publishes 80 % effective time there, 44 % for a synchronous job. All systems run on the same
deaths with the same cost model; transitions as each publishes them, ours by ``simulator/fleet/group_building.py``.
Effective time is throughput over fault-free, everything included. Simulated.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.planning.tables import percent, table, write_json
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.simulator.baselines.evenkeel import Evenkeel, EvenkeelMix
from evenkeel.simulator.baselines.ft_hsdp import REJOIN_SECONDS, FtHsdp
from evenkeel.simulator.baselines.synchronous_restart import SynchronousRestart
from evenkeel.simulator.fleet.detection import DetectorModel
from evenkeel.simulator.fleet.faults import Fault, FaultProcess, Spacing, drawn_faults
from evenkeel.simulator.fleet.group_building import Vote, group_building
from evenkeel.simulator.fleet.models import MODELS
from evenkeel.simulator.fleet.representatives import Representatives
from evenkeel.simulator.fleet.simulation import FleetSimulation
from evenkeel.simulator.fleet.strategy import Costs, Strategy
from evenkeel.simulator.fleet.topology import Scope, Topology

TENSOR, PIPELINE, DATA, QUOTA = 8, 16, 768, 32
MTBF_SECONDS, BACK_SECONDS = 18 * 60.0, 10 * 60.0
NODE_SHARE = 0.37
"""FT-HSDP's causes at 32 K devices: 63 % name a device (memory, PCIe, GPU, NCCL timeout, corruption); the rest are
hosts, networks, software: here the whole node dies, and nobody is left to report it."""
BAR = 0.95
REPRESENTATIVES = 12
"""Healthy replicas that may take work over: a dead node's replica gives away ten micro-batches of 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The job and what it runs on; iterations of about 16 s (published: about 20)."""

    home: Layout
    cost: CostModel
    topology: Topology


def fleet(data: int = DATA) -> Fleet:
    """Llama-3-405B-like, TP 8, PP 16; 450 TFLOP/s a device as FT-HSDP publishes for its jobs."""
    spec = MODELS["llama3-405b"].spec()
    workload = Workload(
        seconds_per_flop=1.0 / 450e12, tokens=8192.0, sum_of_squares=8192.0 * 2048.0, transfer_seconds=0.002
    )
    home = uniform_layout(
        num_blocks=len(spec.blocks), tensor=TENSOR, pipeline=PIPELINE, data=data, num_micro_batches=QUOTA * data
    )
    return Fleet(home=home, cost=CostModel(spec, workload), topology=Topology(num_devices=data * TENSOR * PIPELINE))


def deaths(topology: Topology, seconds: float, seed: int, spacing: Spacing) -> tuple[Fault, ...]:
    """A death every 18 min on average, its replacement there after 10; a part of them take a whole node, silently."""

    def process(every_seconds: float, scope: Scope = Scope.DEVICE) -> FaultProcess:
        return FaultProcess(
            every_seconds=every_seconds,
            scope=scope,
            silent=scope is Scope.NODE,
            spacing=spacing,
            mean_repair_seconds=BACK_SECONDS,
            repair_spacing=Spacing.REGULAR,
        )

    processes = [process(MTBF_SECONDS)]
    if spacing is Spacing.EXPONENTIAL:
        processes = [process(MTBF_SECONDS / (1.0 - NODE_SHARE)), process(MTBF_SECONDS / NODE_SHARE, Scope.NODE)]
    return drawn_faults(processes, topology, duration_seconds=seconds, seed=seed)


def systems(num_representatives: int) -> dict[str, Strategy]:
    """Who competes."""
    return {
        "synchronous restart": SynchronousRestart(),
        "FT-HSDP": FtHsdp(),
        "FT-HSDP, with its stall at returns": FtHsdp(rejoin_seconds=REJOIN_SECONDS),
        "FT-HSDP, its target of a 1.5 min stall": FtHsdp(stall_seconds=90.0),
        "Evenkeel": Representatives(Evenkeel(), num_representatives),
    }


def run_one(
    where: Fleet,
    strategy: Strategy,
    faults: Sequence[Fault],
    seconds: float,
    group_seconds: float,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """One run of one system, as plain data."""
    iteration = where.cost.iteration_seconds(where.home, dict.fromkeys(where.home.ranks, 1.0))
    started = time.process_time()
    result = FleetSimulation(
        home=where.home,
        cost=where.cost,
        topology=where.topology,
        faults=faults,
        # A death is told at once by who waits for the process; nobody tells of a dead host: two iterations of silence.
        detector=DetectorModel(stop_seconds=2.0, silent_seconds=2.0 * iteration),
        costs=Costs(
            transition=TransitionCosts(group_seconds=group_seconds, bytes_per_second=1e10),
            replacement_seconds=BACK_SECONDS,
            # Weights and gradients; the optimizer's state is shared among the replicas there, which layouts cannot say.
            device_bytes=120e9,
        ),
        strategy=strategy,
        duration_seconds=seconds,
        on_progress=on_progress,
    ).run()
    return {
        "effective": result.throughput,
        "bound": result.bound,
        "paused": result.paused_seconds / seconds,
        "stopped": result.stopped_seconds / seconds,
        "num_answers": result.num_answers,
        "cpu_seconds": time.process_time() - started,
    }


def means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean of each figure."""
    return {key: fmean(row[key] for row in rows) for key in rows[0]}


def run(
    days: float, seeds: Sequence[int], group_costs: Sequence[float], group_hours: float, mix_hours: float
) -> dict[str, Any]:
    """All tables; each is printed when it is ready."""
    where, seconds = fleet(), days * 86400.0
    building = group_building(where.home)
    found: dict[str, Any] = {
        "num_devices": where.topology.num_devices,
        "days": days,
        "seeds": len(seeds),
        "group_building": {"levels": building.total, "flat": group_building(where.home, Vote.FLAT).total},
    }
    regular = deaths(where.topology, seconds, 0, Spacing.REGULAR)
    drawn = [deaths(where.topology, seconds, seed, Spacing.EXPONENTIAL) for seed in seeds]
    header = [
        "system",
        "as published: every 18 min",
        "drawn, 37 % nodes",
        "paused",
        "waiting",
        "CPU s a day",
    ]
    lines = []
    for name, strategy in systems(REPRESENTATIVES).items():
        even = run_one(where, strategy, regular, seconds, building.total)
        row = means([run_one(where, strategy, faults, seconds, building.total) for faults in drawn])
        found[name] = {"regular": even, "drawn": row}
        lines.append(
            [
                name,
                percent(even["effective"]),
                percent(row["effective"]),
                percent(row["paused"]),
                percent(row["stopped"]),
                f"{row['cpu_seconds'] / days:.0f}",
            ]
        )
    bound = found["Evenkeel"]["drawn"]["bound"]
    lines.append(["bound", "-", percent(bound, 3), "-", "-", "-"])
    print(
        f"## {where.topology.num_devices:,} devices, percent of time that is effective\n\n{table(header, lines)}\n",
        flush=True,
    )
    mix_seconds = 3600.0 * mix_hours
    few = [fault for fault in drawn[0] if fault.at_seconds < mix_seconds]
    mixed = run_one(where, EvenkeelMix(), few, mix_seconds, building.total)
    same = run_one(where, Representatives(Evenkeel(), REPRESENTATIVES), few, mix_seconds, building.total)
    found["sequence mix"] = {"hours": mix_hours, "mix": mixed, "without": same}
    print(
        f"With the sequence mix, {mix_hours:g} h of the first run, the solver asked about all devices: "
        f"{percent(mixed['effective'])} (without {percent(same['effective'])}).\n",
        flush=True,
    )
    found["by_group_seconds"] = []
    lines = []
    for cost in (*group_costs, found["group_building"]["flat"]):
        part = 3600.0 * group_hours
        faults = [fault for fault in drawn[0] if fault.at_seconds < part]
        row = run_one(where, Representatives(Evenkeel(), REPRESENTATIVES), faults, part, cost)
        found["by_group_seconds"].append({"group_seconds": cost, **row})
        reached = "yes" if row["effective"] >= BAR else "no"
        lines.append([f"{cost:.1f}", percent(row["effective"]), reached])
    print(f"## By the time to build groups\n\n{table(['seconds', 'effective', 'at least 95 %'], lines)}\n")
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--group-seconds", type=float, nargs="+", default=[1.0, 10.0, 20.0])
    parser.add_argument("--group-hours", type=float, default=6.0)
    parser.add_argument("--mix-hours", type=float, default=1.0)
    parser.add_argument("--json", type=Path, default=Path("out/planning_hundred_thousand.json"))
    chosen = parser.parse_args()
    write_json(
        chosen.json,
        run(chosen.days, range(chosen.seeds), chosen.group_seconds, chosen.group_hours, chosen.mix_hours),
    )


if __name__ == "__main__":
    main()
