"""The cost model against the engine: ``python -m benchmarks.planning.live.fidelity``.

The demo's job (TP 2 x PP 2 x DP 2, gloo, emulated devices) runs healthy. *Faults*: some devices become slow or go; the
solver's layout for them is applied; they recover; the full shape is applied again; and so on. *Shapes*: nothing breaks,
layouts with other widths and other numbers of replicas are applied in turn with the full one. The job's samples go
through the telemetry service's rules, the detector and the scheduler's own state, in this process: what a plan was
predicted to take comes from what was known before it was applied, what it took is the scheduler's own measurement.
Devices are emulated: real compute, paced. Links are this machine's unless a speed is given; then operations end as
late as they would on such links.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.planning.live.engine_run import run
from benchmarks.planning.live.exchanges import Exchange, exchanges_of
from benchmarks.planning.live.predictions import Row, rows_of
from benchmarks.planning.live.steps import PARTS
from benchmarks.planning.tables import percent, table, write_json
from evenkeel.demo.script.job import main_job

_NEAR = (0.03, 0.05)


def main() -> None:
    """Runs the job and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20, help="of each stretch")
    parser.add_argument("--pace", type=float, default=1.0, help="how many times slower than the demo's devices are")
    parser.add_argument("--link-bytes-per-second", type=float, default=math.inf, help="emulated; inf: as this machine")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/planning/fidelity.json"))
    options = parser.parse_args()
    job, told, summary = main_job("fidelity", options.seed), {}, []
    for part in options.parts:
        segments, samples = run(job, PARTS[part](job), options.iterations, options.pace, options.link_bytes_per_second)
        rows = list(rows_of(job, segments, samples))
        told[part] = [asdict(row) | {"errors": row.errors} for row in rows]
        summary += [[part, *_summed(rows, place)] for place in (0, 1)]
        header = ["plan for", "predicted s", "measured s", "error %", "over 16 iterations s", "error %"]
        print(f"## {part}\n\n{table(header, [_cells(row) for row in rows])}\n", flush=True)
        if part == "shapes":
            found = exchanges_of(job.model, segments, samples)
            exchanges = list({each.name: each for each in reversed(list(found))}.values())[::-1]
            told["exchanges"] = [asdict(each) for each in exchanges]
            header = ["layout", "gradients ms", "predicted", "error %", "tensor ms", "predicted", "error %"]
            print(f"## Exchanges\n\n{table(header, [_exchanged(each) for each in exchanges])}\n", flush=True)
    header = ["plans", "number", "measured", *[f"within {100 * most:.0f} %" for most in _NEAR], "median", "worst"]
    print(f"## Summary\n\n{table(header, summary)}")
    write_json(options.json, told)


def _summed(rows: Sequence[Row], place: int) -> list[str]:
    """A line of the summary: how near plans came by one of the two measurements."""
    errors = [abs(row.errors[place]) for row in rows]
    near = [f"{sum(error <= most for error in errors)}" for most in _NEAR]
    words = ("after a few iterations", "over 16")[place]
    return [str(len(rows)), words, *near, f"{percent(statistics.median(errors))} %", f"{percent(max(errors))} %"]


def _exchanged(each: Exchange) -> list[str]:
    cells = [each.name]
    pairs = (each.gradient_seconds, each.gradient_predicted), (each.tensor_seconds, each.tensor_predicted)
    for took, predicted in pairs:
        error = f"{100.0 * (took / predicted - 1.0):+.1f}" if predicted else "-"
        cells += [f"{1e3 * took:.1f}", f"{1e3 * predicted:.1f}", error]
    return cells


def _cells(row: Row) -> list[str]:
    early, late = row.errors
    return [
        row.plan,
        f"{row.predicted_seconds:.3f}",
        f"{row.measured_seconds:.3f}",
        f"{100 * early:+.1f}",
        f"{row.settled_seconds:.3f}",
        f"{100 * late:+.1f}",
    ]


if __name__ == "__main__":
    main()
