"""Runs the grid of traces: ``python -m benchmarks.detection.run``, then ``python -m benchmarks.detection.page``.

Each trace's scores are one line of ``out/benchmarks/detection/scores.jsonl`` as soon as they are known; a run that was
stopped goes on where it was. Cells take turns, so what was stopped has some traces of all of them. Every number is
simulated (see ``simulator/``); no hardware is measured.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.detection.baselines.finding import Contender
from benchmarks.detection.baselines.fixed_ratio import FixedRatio
from benchmarks.detection.baselines.greyhound import Greyhound
from benchmarks.detection.baselines.ours import Evenkeel
from benchmarks.detection.baselines.relative_scores import RelativeScores
from benchmarks.detection.baselines.resihp import ResiHP
from benchmarks.detection.page import SCORES, results_of, table
from benchmarks.detection.traces.cells import Cell, grid, wants_baselines
from benchmarks.detection.traces.score import score_trace
from benchmarks.detection.traces.simulated_run import SHAPES

OURS = Evenkeel()
BASELINES: tuple[Contender, ...] = (ResiHP(), Greyhound(), RelativeScores(), FixedRatio())
_TURN = 20


def main() -> None:
    """Parses the arguments, runs what is not there yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=sorted(SHAPES))
    parser.add_argument("--slowdowns", nargs="+", type=float, metavar="PERCENT", help="only cells of these sizes")
    parser.add_argument("--traces", type=int, default=200, help="traces of a cell of slow ones")
    parser.add_argument("--out", type=Path, default=SCORES)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [
        (cell, count)
        for cell, count in grid(arguments.shapes, arguments.traces)
        if arguments.slowdowns is None or cell.slowdown_percent in arguments.slowdowns
    ]
    done = _done(arguments.out)
    for first in range(0, arguments.traces, _TURN):
        for cell, count in wanted:
            # Cells that want more have longer turns, so that what was stopped is half healthy too.
            started, ran, scale = time.process_time(), 0, count // arguments.traces
            stop = min((first + _TURN) * scale, count)
            for index in range(first * scale, stop):
                if (cell.name, index) not in done:
                    _append(arguments.out, cell, index)
                    ran += 1
            if ran:
                seconds = (time.process_time() - started) / ran
                print(f"{cell.name}: {stop} traces, {seconds:.2f} s of CPU each", file=sys.stderr, flush=True)
    print(table(results_of(arguments.out), [cell for cell, _ in wanted]))


def _append(path: Path, cell: Cell, index: int) -> None:
    """Runs the detectors over one trace and keeps their scores."""
    trace = cell.trace(index)
    contenders = (OURS, *BASELINES) if wants_baselines(cell, index) else (OURS,)
    scores = {each.name: asdict(score_trace(trace, each.findings(trace))) for each in contenders}
    with path.open("a") as file:
        file.write(json.dumps({"cell": cell.name, "index": index, "scores": scores}) + "\n")


def _done(path: Path) -> set[tuple[str, int]]:
    if not path.exists():
        return set()
    with path.open() as file:
        return {(row["cell"], row["index"]) for row in map(json.loads, file)}


if __name__ == "__main__":
    main()
