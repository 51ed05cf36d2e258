"""Half of 512 devices die one by one: ``python -m benchmarks.planning.papers.half_lost``.

ReCoVer's job (arXiv 2605.11215): LLaMA 7B, TP 4, PP 2, 64 replicas of 128 micro-batches, on 512 devices; nobody comes
back. It kills whole replicas (``--victims replica``), where it gives nothing up; single devices all over the job are
the other end. Its figure of merit is throughput per live device, here relative to the start. Every iteration must do
all of its 8,192 micro-batches. Simulated; transitions are left out, because deaths every five iterations (as published)
would measure them only.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.planning.papers.placements import PLACEMENTS, victims
from benchmarks.planning.solver.cases import Case, case_of
from benchmarks.planning.tables import percent, table, write_json
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of, operation_seconds
from evenkeel.simulator.fleet.strategy import Costs, Question

SYSTEMS = ("drop replica", "ReCoVer", "NTP", "ResiHP", "Evenkeel", "Evenkeel + sequence mix")
CHECKPOINTS = (1, 8, 32, 64, 128, 192, 256)
NO_LIMIT_BYTES = 1e12
"""The published systems are not held to a memory limit here, so nobody is unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The job after some deaths.

    Attributes:
        num_dead: How many.
        throughput: Relative to the start; 0 = it cannot run.
        per_live_device: Throughput over the part of the devices that live.
        complete: The iteration does the whole batch.
    """

    num_dead: int
    throughput: float
    per_live_device: float
    complete: bool


def course(
    case: Case, system: str, order: Sequence[int], at: Sequence[int], device_bytes: float = NO_LIMIT_BYTES
) -> list[Moment]:
    """One system through all deaths; it is asked at each of those in ``at``."""
    healthy = Replay(case.cost).seconds(case.home, case.healthy)
    current: Operation | None = operation_of(case.home)
    total = case.home.num_micro_batches
    moments = []
    for num_dead in at:
        throughputs = case.healthy
        for rank in order[:num_dead]:
            del throughputs[rank]
        if current is not None:
            question = Question(
                at_seconds=float(num_dead),
                home=case.home,
                current=current,
                throughputs=throughputs,
                cost=case.cost,
                topology=Topology(num_devices=case.num_devices),
                costs=Costs(device_bytes=device_bytes),
            )
            current = STRATEGIES[system].answer(question).operation
        rate, complete = 0.0, False
        if current is not None:
            rate = current.batch_fraction * healthy / operation_seconds(case.cost, current, throughputs)
            scales = current.scales or (1.0,) * len(current.quotas)
            done = sum(quota * scale for quota, scale in zip(current.quotas, scales, strict=True))
            complete = current.batch_fraction == 1.0 and abs(done - total) < 1e-6 * total
        live = len(throughputs) / case.num_devices
        moments.append(Moment(num_dead=num_dead, throughput=rate, per_live_device=rate / live, complete=complete))
    return moments


def run(
    systems: Sequence[str], num_deaths: int, every: int, placement: str, seed: int, device_bytes: float
) -> dict[str, Any]:
    """The table; all systems lose the same devices in the same order."""
    case = case_of("llama2-7b", 4, 64, 2, 128, 1.0)
    order = victims(placement, case.home, Topology(num_devices=case.num_devices), seed)[:num_deaths]
    at = sorted({*range(every, num_deaths + 1, every), *(n for n in CHECKPOINTS if n <= num_deaths)})
    shown = [n for n in CHECKPOINTS if n <= num_deaths]
    lines, found = [], {}
    for system in systems:
        moments = course(case, system, order, at, device_bytes)
        by_count = {moment.num_dead: moment for moment in moments}
        found[system] = [
            {"num_dead": m.num_dead, "per_live_device": m.per_live_device, "complete": m.complete} for m in moments
        ]
        running = [moment.per_live_device for moment in moments if moment.throughput > 0.0]
        ended = next((moment.num_dead for moment in moments if moment.throughput <= 0.0), None)
        lines.append(
            [
                system,
                *(percent(by_count[n].per_live_device) if by_count[n].throughput else "-" for n in shown),
                percent(min(running, default=None)) + (f", ends by {ended}" if ended else ""),
                "yes" if all(moment.complete for moment in moments) else "no",
            ]
        )
    header = ["system", *(f"{n} dead" for n in shown), "lowest", "every iteration complete"]
    title = f"Half of 512 devices lost, {PLACEMENTS[placement]}: throughput per live device, % of the start"
    print(f"## {title}\n\n{table(header, lines)}\n")
    return {"placement": placement, "seed": seed, "every": every, "systems": found}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=list(STRATEGIES), default=list(SYSTEMS))
    parser.add_argument("--deaths", type=int, default=256)
    parser.add_argument("--every", type=int, default=8, help="ask after every so many deaths; 1 = after each")
    parser.add_argument("--victims", choices=list(PLACEMENTS), default="random")
    parser.add_argument("--device-bytes", type=float, default=NO_LIMIT_BYTES, help="memory of a device for state")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/planning/half_lost.json"))
    chosen = parser.parse_args()
    write_json(
        chosen.json, run(chosen.systems, chosen.deaths, chosen.every, chosen.victims, chosen.seed, chosen.device_bytes)
    )


if __name__ == "__main__":
    main()
