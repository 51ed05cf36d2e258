"""One device at half speed, and whom it makes wait: ``python -m benchmarks.planning.papers.amplification``.

ResiHP's Fig. 2 (arXiv 2605.06374): LLaMA-2 13B, TP 4, DP 2, PP 4. Extra idle time of the devices that wait, in units of
what the slow device itself takes longer: in its tensor group, in its replica, in the whole job (each set holds the one
before). Published: 4.75, 19.13, 25.43 with nothing done; 2.03, 8.72, 11.14 under ResiHP. Idle is the iteration without
a device's own compute; extra is against the healthy job. Mean over all places of the slow device. Simulated.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.planning.solver.cases import Case, resihp_cases
from benchmarks.planning.tables import table, write_json
from evenkeel.layouts.cut import shard_parts
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of, operation_seconds
from evenkeel.simulator.fleet.strategy import Costs, Question

SYSTEMS = ("no mitigation", "Greyhound", "ResiHP", "Evenkeel", "Evenkeel + sequence mix")
PUBLISHED = {"no mitigation": (4.75, 19.13, 25.43), "ResiHP": (2.03, 8.72, 11.14)}
SCOPES = ("tensor group", "replica", "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Extra idle seconds per iteration.

    Attributes:
        own: Of the slow device.
        others: Of the others of its tensor group, of its replica, of the job.
        iteration_seconds: Of the job.
    """

    own: float
    others: tuple[float, float, float]
    iteration_seconds: float


def busy_seconds(case: Case, operation: Operation, throughputs: Mapping[int, float]) -> dict[int, float]:
    """Own compute of each device in one iteration."""
    executed: defaultdict[tuple[int, int], float] = defaultdict(float)
    for d, quota in enumerate(operation.quotas):
        scale = operation.scales[d] if operation.scales else 1.0
        for m in range(quota):
            for s in range(len(operation.replicas[d])):
                executed[operation.routes[d][m][s] if operation.routes else d, s] += scale
    busy: dict[int, float] = {}
    each = case.cost.block_parts("1f1b").sum(axis=1).tolist()
    for (d, s), count in executed.items():
        stage = operation.replicas[d][s]
        assert stage is not None
        for t, rank in enumerate(stage.ranks):
            seconds = 0.0
            for block in range(stage.first_block, stage.stop_block):
                width = case.cost.model.blocks[block].max_width
                seconds += each[block] * shard_parts(width, stage.shares)[t]
            busy[rank] = count * seconds / throughputs[rank]
    return busy


def waiting(case: Case, system: str, rank: int, throughput: float) -> Waiting:
    """What one slow device makes the others wait under a system."""
    home, healthy = operation_of(case.home), case.healthy
    slow = {**healthy, rank: throughput}
    question = Question(
        at_seconds=0.0,
        home=case.home,
        current=home,
        throughputs=slow,
        cost=case.cost,
        topology=Topology(num_devices=case.num_devices),
        costs=Costs(),
        slow_since_seconds=-3600.0,
    )
    operation = STRATEGIES[system].answer(question).operation
    assert operation is not None
    before, after = busy_seconds(case, home, healthy), busy_seconds(case, operation, slow)
    healthy_seconds = operation_seconds(case.cost, home, healthy)
    seconds = operation_seconds(case.cost, operation, slow)
    extra = {
        each: (seconds - after.get(each, 0.0)) - (healthy_seconds - before[each])
        for each in case.home.ranks
        if each != rank
    }
    at = case.home.position_of(rank)
    assert at is not None
    replica = case.home.replicas[at.replica]
    group = replica.stages[at.stage].ranks
    return Waiting(
        own=(seconds - after.get(rank, 0.0)) - (healthy_seconds - before[rank]),
        others=(
            sum(extra[each] for each in group if each != rank),
            sum(extra[each] for each in replica.ranks if each != rank),
            sum(extra.values()),
        ),
        iteration_seconds=seconds,
    )


def run(throughput: float) -> dict[str, Any]:
    """The table, printed and as data."""
    case = next(case for case in resihp_cases() if case.model == "llama2-13b")
    own_slowdown = busy_seconds(case, operation_of(case.home), case.healthy)[0] * (1.0 / throughput - 1.0)
    healthy_seconds = operation_seconds(case.cost, operation_of(case.home), case.healthy)
    found: dict[str, Any] = {"throughput": throughput, "published": PUBLISHED, "systems": {}}
    lines = []
    for system in SYSTEMS:
        cells = [waiting(case, system, rank, throughput) for rank in case.home.ranks]
        means = [fmean(cell.others[scope] for cell in cells) / own_slowdown for scope in range(3)]
        speed = fmean(healthy_seconds / cell.iteration_seconds for cell in cells)
        found["systems"][system] = {"extra_idle": dict(zip(SCOPES, means, strict=True)), "throughput": speed}
        said = PUBLISHED.get(system)
        lines.append(
            [
                system,
                *(f"{each:.2f}" for each in means),
                " / ".join(f"{each:.2f}" for each in said) if said else "-",
                f"{100.0 * speed:.1f}",
            ]
        )
    bound = (case.num_devices - 1.0 + throughput) / case.num_devices
    header = ["system", *SCOPES, "published", "throughput, % of healthy"]
    print(
        f"## One of 32 devices at {throughput:g}: extra idle time of the others\n\n{table(header, lines)}\n\n"
        f"Proportional bound: {100.0 * bound:.1f} % of healthy.\n"
    )
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--throughput", type=float, default=0.5)
    parser.add_argument("--json", type=Path, default=Path("out/planning/amplification.json"))
    chosen = parser.parse_args()
    write_json(chosen.json, run(chosen.throughput))


if __name__ == "__main__":
    main()
