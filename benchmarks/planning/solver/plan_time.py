"""How long a plan takes: ``python -m benchmarks.planning.solver.plan_time``.

Fleets of 64 to 100,000 devices, and one of 64 with 8,000 micro-batches, each one job with a layout in force, in random
states: some devices dead, some slow, with speeds of their own, so that hardly two ill replicas are alike; with
``--spares`` healthy ranks without a place are there too, with ``--schedules`` the job's engine runs ZB-H1 too, so that
plans weigh both schedules. Prints a table (Markdown) and writes JSON. The time is CPU time of one thread for
:func:`evenkeel.planning.search.solver.solve`, warm as the service is and nothing cached of earlier plans.
"""

import argparse
import gc
import json
import random
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.planning.solver.cases import Case, case_of
from evenkeel.layouts.programs.schedules import SCHEDULES
from evenkeel.planning.costs.cost_model import block_slowness
from evenkeel.planning.levers.balance.tensor_width import best_widths
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.warm_up import warm_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A job of this size, and how ill its states are.

    Attributes:
        model: Key of the published models.
        tensor: Shards per stage.
        pipeline: Stages.
        data: Replicas.
        quota: Micro-batches per replica.
        max_ill: Largest part of the devices that is ill.
        bar_seconds: What 99 of 100 plans must keep to.
    """

    model: str
    tensor: int
    pipeline: int
    data: int
    quota: int
    max_ill: float
    bar_seconds: float

    def case(self, *, schedules: bool) -> Case:
        """The job; with its schedules to choose from, if wanted."""
        bare = case_of(self.model, self.tensor, self.data, self.pipeline, self.quota, 1.0)
        return replace(bare, home=replace(bare.home, schedules=tuple(sorted(SCHEDULES)))) if schedules else bare


FLEETS = (
    Fleet(model="llama2-30b", tensor=4, pipeline=8, data=2, quota=16, max_ill=1 / 8, bar_seconds=0.02),
    Fleet(model="llama2-70b", tensor=4, pipeline=16, data=4, quota=32, max_ill=1 / 8, bar_seconds=0.05),
    Fleet(model="llama2-70b", tensor=8, pipeline=16, data=128, quota=32, max_ill=0.004, bar_seconds=0.5),
    Fleet(model="llama2-70b", tensor=8, pipeline=16, data=781, quota=32, max_ill=0.002, bar_seconds=2.0),
    Fleet(model="llama2-30b", tensor=4, pipeline=8, data=2, quota=4000, max_ill=1 / 8, bar_seconds=2.0),
)
"""0.4 % and 0.2 % ill at once: 65 of 16,384, 200 of 100,000 devices; a failure every 18 minutes repaired after an hour
leaves three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Plan times of one fleet."""

    num_devices: int
    num_micro_batches: int
    num_spares: int
    num_states: int
    largest_num_ill: int
    p50_seconds: float
    p99_seconds: float
    max_seconds: float
    bar_seconds: float
    worst_of_bound: float


def random_state(case: Case, max_ill: float, seed: int, num_spares: int = 0) -> dict[int, float]:
    """Throughputs of the devices that live; from one to ``max_ill`` of all are dead or slow."""
    rng = random.Random(seed)
    most = max(1, int(max_ill * case.num_devices))
    ill = rng.sample(case.home.ranks, rng.randint(1, most))
    speeds = case.healthy
    for rank in ill:
        if rng.random() < 0.5:
            del speeds[rank]
        else:
            speeds[rank] = rng.uniform(0.2, 0.95)
    first = case.home.ranks[-1] + 1
    return speeds | dict.fromkeys(range(first, first + num_spares), 1.0)


def timed(case: Case, speeds: dict[int, float]) -> tuple[float, float]:
    """CPU seconds of one plan with cold caches, and its part of the proportional bound."""
    for cached in (block_slowness, best_widths):
        cached.cache_clear()
    gc.collect()
    started = time.process_time()
    situation = Situation(
        layout=case.home, home=case.home, throughputs=speeds, cost=case.cost, holders=frozenset(speeds)
    )
    solution = solve(situation)
    seconds = time.process_time() - started
    return seconds, solution.bound_seconds / solution.predicted_seconds


def row_of(fleet: Fleet, num_states: int, num_spares: int = 0, *, schedules: bool = False) -> Row:
    """Plans for random states of a fleet."""
    case = fleet.case(schedules=schedules)
    states = [random_state(case, fleet.max_ill, seed, num_spares) for seed in range(num_states)]
    found = [timed(case, speeds) for speeds in states]
    seconds = sorted(each for each, _ in found)
    return Row(
        num_devices=case.num_devices,
        num_micro_batches=case.home.num_micro_batches,
        num_spares=num_spares,
        num_states=num_states,
        largest_num_ill=max(sum(speeds.get(rank, 0.0) < 1.0 for rank in case.home.ranks) for speeds in states),
        p50_seconds=seconds[num_states // 2],
        p99_seconds=seconds[min(num_states - 1, int(0.99 * num_states))],
        max_seconds=seconds[-1],
        bar_seconds=fleet.bar_seconds,
        worst_of_bound=min(of_bound for _, of_bound in found),
    )


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| devices | micro-batches | spares | states | most ill | p50 ms | p99 ms | max ms | bar ms | of the bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        times = " | ".join(f"{1e3 * each:.0f}" for each in (row.p50_seconds, row.p99_seconds, row.max_seconds))
        lines.append(
            f"| {row.num_devices:,} | {row.num_micro_batches:,} | {row.num_spares} | {row.num_states} | "
            f"{row.largest_num_ill} | {times} | "
            f"{1e3 * row.bar_seconds:.0f} | {100 * row.worst_of_bound:.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=100, help="random states of the two smaller fleets")
    parser.add_argument("--large-states", type=int, default=20, help="random states of the two larger ones")
    parser.add_argument("--fleets", type=int, nargs="+", choices=range(len(FLEETS)), default=list(range(len(FLEETS))))
    parser.add_argument("--spares", type=int, nargs="+", default=[0], help="healthy ranks without a place")
    parser.add_argument("--schedules", action="store_true", help="offer the lever schedule")
    parser.add_argument("--json", type=Path, default=Path("out/plan_time.json"), help="where the rows go")
    chosen = parser.parse_args()
    warm_up()
    gc.freeze()  # as services do at their start
    rows = [
        row_of(f, chosen.states if f.data < 100 else chosen.large_states, spares, schedules=chosen.schedules)
        for f in (FLEETS[index] for index in chosen.fleets)
        for spares in chosen.spares
    ]
    print(table(rows))
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
