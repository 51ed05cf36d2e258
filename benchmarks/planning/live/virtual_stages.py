"""Several stages a rank, live: ``python -m benchmarks.planning.live.virtual_stages``.

A job of PP 4 (gloo, emulated devices) with few micro-batches runs under the best layout for an engine that has one
stage a rank, then under the best one with several: healthy, and with a slow device. Predictions and measurements are
those of :mod:`~benchmarks.planning.live.fidelity`: what the scheduler knew before each plan, what it measured. What the
detector says of the run is told too: a device that is slow is to be named, and nothing else.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.planning.live.engine_run import run
from benchmarks.planning.live.pipelined_job import pipelined_job
from benchmarks.planning.live.predictions import batches_told, rows_of
from benchmarks.planning.live.routes import HEADER, cells_of
from benchmarks.planning.live.steps import HEALTHY, Step
from benchmarks.planning.solver.best_layout import best_layout
from benchmarks.planning.tables import table, write_json
from evenkeel.demo.script.job import MainJob
from evenkeel.offline.samples.stream import observations_of
from evenkeel.planning.costs.cost_model import Workload
from evenkeel.services.detector.domain.findings.verdict import Verdict
from evenkeel.services.detector.domain.job.job import JobDetector

CASES: Mapping[str, Mapping[int, float]] = {"healthy": HEALTHY, "rank 2 at 0.6": {2: 0.6}}
_TOKEN_BUDGET = 160


def main() -> None:
    """Runs the job and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20, help="of each stretch")
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="of a healthy iteration with one stage a rank, about"
    )
    parser.add_argument("--json", type=Path, default=Path("out/planning/virtual_stages.json"))
    options = parser.parse_args()
    job = interleavable_job(options.seconds)
    segments, samples = run(job, steps_of(job), options.iterations)
    rows = [row for row in rows_of(job, segments, samples) if row.plan != "home"]
    print(table(HEADER, list(map(cells_of, rows))))
    detector = JobDetector(job.config.job_id)
    for observation in observations_of(batches_told(job.config.job_id, samples)):
        for finding in detector.observe(observation):
            if isinstance(finding, Verdict):
                ranks = ", ".join(str(culprit.rank) for culprit in finding.culprits)
                print(f"verdict: {finding.kind} of ranks {ranks} from iteration {finding.first_iteration}")
    write_json(options.json, [asdict(row) for row in rows])


def interleavable_job(iteration_seconds: float) -> MainJob:
    """Four ranks, fourteen layers, four micro-batches; its engine runs several stages a rank."""
    job = pipelined_job(
        "virtual-stages",
        num_layers=14,
        pipeline=4,
        data=1,
        quota=4,
        token_budget=_TOKEN_BUDGET,
        iteration_seconds=iteration_seconds,
    )
    return replace(job, layout=replace(job.layout, interleavable=True))


def steps_of(job: MainJob) -> Iterator[Step]:
    """Each case with one stage a rank and with several, then home."""
    workload = Workload(
        seconds_per_flop=1.0 / job.flops_per_second,
        tokens=float(_TOKEN_BUDGET),
        sum_of_squares=_TOKEN_BUDGET * job.config.workload.median_document_length,
    )
    for name, speeds in CASES.items():
        for words in ("one stage", "several stages"):
            home = replace(job.layout, interleavable=words == "several stages")
            layout = best_layout(job, home, speeds, workload)
            yield Step(name=f"{name}, {words} a rank", speeds=speeds, layout=layout)
        yield Step(name="home", speeds=HEALTHY, layout=job.layout)


if __name__ == "__main__":
    main()
