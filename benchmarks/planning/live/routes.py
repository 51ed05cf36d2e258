"""Stages of micro-batches on other replicas, live: ``python -m benchmarks.planning.live.routes``.

A job of PP 2 x DP 2 (gloo, emulated devices) has slow devices. It runs under the solver's best layout for a job whose
engine runs no routes, then under the best one with routes, the devices as slow as before. Predictions and measurements
are those of :mod:`benchmarks.planning.live.fidelity`: what the scheduler knew before each plan, and what it measured.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.planning.live.engine_run import run
from benchmarks.planning.live.pipelined_job import pipelined_job
from benchmarks.planning.live.predictions import Row, rows_of
from benchmarks.planning.live.steps import HEALTHY, Step
from benchmarks.planning.solver.best_layout import best_layout
from benchmarks.planning.tables import table, write_json
from evenkeel.demo.script.job import MainJob
from evenkeel.planning.costs.cost_model import ASSUMED_WORKLOAD

CASES: Mapping[str, Mapping[int, float]] = {
    "rank 2 at 0.4, rank 3 at 0.7": {2: 0.4, 3: 0.7},
    "rank 2 at 0.6": {2: 0.6},
}
HEADER = ["plan for", "predicted s", "measured s", "over 16 iterations s", "error %"]


def main() -> None:
    """Runs the job and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20, help="of each stretch")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a healthy iteration, about")
    parser.add_argument("--json", type=Path, default=Path("out/planning/routes.json"))
    options = parser.parse_args()
    job = routable_job(options.seconds)
    segments, samples = run(job, steps_of(job), options.iterations)
    rows = [row for row in rows_of(job, segments, samples) if row.plan != "home"]
    print(table(HEADER, list(map(cells_of, rows))))
    write_json(options.json, [asdict(row) for row in rows])


def routable_job(iteration_seconds: float) -> MainJob:
    """Four ranks, two layers, four micro-batches a replica; its engine runs routes."""
    job = pipelined_job(
        "routes",
        num_layers=2,
        pipeline=2,
        data=2,
        quota=4,
        token_budget=160,
        iteration_seconds=iteration_seconds,
    )
    return replace(job, layout=replace(job.layout, routable=True))


def steps_of(job: MainJob) -> Iterator[Step]:
    """Each case without routes and with them, then home."""
    for name, speeds in CASES.items():
        for words in ("without", "with"):
            home = replace(job.layout, routable=words == "with")
            layout = best_layout(job, home, speeds, ASSUMED_WORKLOAD)
            yield Step(name=f"{name}, {words} routes", speeds=speeds, layout=layout)
        yield Step(name="home", speeds=HEALTHY, layout=job.layout)


def cells_of(row: Row) -> Sequence[str]:
    """A line of the table."""
    return [
        row.plan,
        f"{row.predicted_seconds:.3f}",
        f"{row.measured_seconds:.3f}",
        f"{row.settled_seconds:.3f}",
        f"{100 * row.errors[1]:+.1f}",
    ]


if __name__ == "__main__":
    main()
