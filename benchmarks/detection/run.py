"""Runs every detector on the same traces: ``python -m benchmarks.detection.run --shapes 4x2x2 --traces 40``.

Prints a table and writes JSON. A cell is one shape and one size of slowdown; size 0 is the healthy half, whose false
alarms count. Every number is simulated (see ``simulator/``); no hardware is measured.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.detection.baselines.fixed_ratio import FixedRatio
from benchmarks.detection.baselines.greyhound import Greyhound
from benchmarks.detection.baselines.relative_scores import RelativeScores
from benchmarks.detection.baselines.resihp import ResiHP
from benchmarks.detection.finding import Contender
from benchmarks.detection.ours import Evenkeel
from benchmarks.detection.score import CellScore, TraceScore, score_cell, score_trace
from benchmarks.detection.traces import OPERATION_NOISE_SIGMA, SHAPES, Scenario, make_trace

CONTENDERS: tuple[Contender, ...] = (Evenkeel(), ResiHP(), Greyhound(), RelativeScores(), FixedRatio())
HEADINGS = (
    "shape",
    "slow %",
    "detector",
    "found %",
    "delay",
    "p95",
    "severity err",
    "right %",
    "false/1000 it",
    "false/trace",
)


def main() -> None:
    """Parses the arguments, runs all cells, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["4x2x2"], choices=sorted(SHAPES))
    parser.add_argument("--slowdowns", nargs="+", type=float, default=[0, 3, 5, 10, 15, 25, 50], metavar="PERCENT")
    parser.add_argument("--traces", type=int, default=40, help="traces a cell")
    parser.add_argument("--iterations", type=int, default=300, help="iterations a trace")
    parser.add_argument("--scenario", type=Scenario, choices=list(Scenario), default=Scenario.PERSISTENT)
    parser.add_argument(
        "--noise",
        type=float,
        default=100.0 * OPERATION_NOISE_SIGMA,
        metavar="PERCENT",
        help="robust width of one rank's noise in one iteration",
    )
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/detection.json"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + "---|" * len(HEADINGS))
    results = []
    for shape in arguments.shapes:
        for slowdown in arguments.slowdowns:
            scores: dict[str, list[TraceScore]] = {contender.name: [] for contender in CONTENDERS}
            started = time.monotonic()
            for seed in range(arguments.traces):
                trace = make_trace(
                    seed,
                    shape=shape,
                    num_iterations=arguments.iterations,
                    slowdown_percent=slowdown,
                    scenario=arguments.scenario,
                    noise_sigma=arguments.noise / 100.0,
                )
                for contender in CONTENDERS:
                    scores[contender.name].append(score_trace(trace, contender.findings(trace)))
            for name, of_traces in scores.items():
                cell = score_cell(of_traces)
                print(_row(shape, slowdown, name, cell), flush=True)
                results.append(
                    {
                        "shape": shape,
                        "scenario": arguments.scenario,
                        "noise_percent": arguments.noise,
                        "slowdown_percent": slowdown,
                        "detector": name,
                        **asdict(cell),
                    }
                )
            # After every cell: a run that is stopped keeps what it measured.
            arguments.out.write_text(json.dumps(results, indent=1))
            print(f"{shape} {slowdown:g} %: {time.monotonic() - started:.1f} s", file=sys.stderr)


def _row(shape: str, slowdown: float, name: str, cell: CellScore) -> str:
    def shown(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    cells = (
        shape,
        f"{slowdown:g}",
        name,
        shown(cell.found_percent),
        shown(cell.median_delay, 0),
        shown(cell.p95_delay, 0),
        shown(cell.median_severity_error, 2),
        shown(cell.right_percent),
        shown(cell.false_per_1000_iterations, 3),
        shown(cell.false_per_trace, 2),
    )
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
