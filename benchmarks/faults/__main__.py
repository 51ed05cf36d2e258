"""What a live job loses to faults: ``python -m benchmarks.faults``; ``--only`` takes some cells, ``--list`` names them.

One job of eight ranks (TP 2 x PP 2 x DP 2, two nodes) on emulated devices, under two of each service. Each cell lets
ranks, services or both fail, ranks at named moments of an iteration, of a plan or of their own return, and the next
begins when the job is whole again. Prints a table of the seconds that were lost by cell, then JSON: losses against the
failure-free run, samples.
"""

import argparse
import asyncio
import json
import math
import sys
import time
from collections import defaultdict, deque
from pathlib import Path
from statistics import median

from benchmarks.faults.cells import cases, grid
from benchmarks.faults.live import Outcome, run, together
from evenkeel.demo.report.expectations import LOSS_TOLERANCE
from evenkeel.stack.stack import Stack


def table_of(outcome: Outcome) -> list[dict[str, object]]:
    """A row for each cell that was played."""
    by_cell = defaultdict[str, list[float | None]](list)
    for case, lost in zip(outcome.cases, outcome.lost_seconds, strict=True):
        if not case.came:
            continue
        by_cell[str(case.cell)].append(None if case.problem else lost)
    return [
        {
            "cell": cell,
            "cases": len(lost),
            "failed": lost.count(None),
            "p50_seconds": round(median(seen), 2) if (seen := [one for one in lost if one is not None]) else None,
            "max_seconds": round(max(seen), 2) if seen else None,
        }
        for cell, lost in by_cell.items()
    ]


def main() -> int:
    """Plays the cases, prints the table and JSON; 1 when one of them failed, a loss differs or a sample is not once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="how often each cell comes")
    parser.add_argument("--only", default="", metavar="WORDS", help="cells whose words contain these")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="name the cells and play none")
    options = parser.parse_args()
    if options.list:
        print("\n".join(map(str, grid())))
        return 0
    wanted = deque(cases(options.rounds, options.seed, options.only))
    if not wanted:
        parser.error(f"no cell has {options.only!r} in its words: --list names them")
    with Stack("benchmark-faults", num_instances=2, keep_data=False) as stack:
        until_seconds, outcomes = time.monotonic() + options.seconds, list[Outcome]()
        while wanted and time.monotonic() < until_seconds:  # a job that a case has ruined is followed by another one
            folder = Path(stack.folder) / f"job-{len(outcomes)}"
            outcomes.append(asyncio.run(run(stack, wanted, folder, options.seed, until_seconds=until_seconds)))
    outcome = together(outcomes)
    rows = table_of(outcome)
    width = max(len(str(row["cell"])) for row in rows) + 1
    print(f"{'cell':{width}}" + "".join(f"{name:>14}" for name in ("cases", "failed", "p50_seconds", "max_seconds")))
    for row in rows:
        figures = (row[name] for name in ("cases", "failed", "p50_seconds", "max_seconds"))
        print(f"{row['cell']!s:{width}}" + "".join(f"{'-' if one is None else one!s:>14}" for one in figures))
    whole = {
        "cases": sum(case.came for case in outcome.cases),
        "moments_that_did_not_come": sum(not case.came for case in outcome.cases),
        "failed": sum(bool(case.problem) for case in outcome.cases),
        "healthy_iteration_seconds": round(outcome.healthy_seconds, 3),
        "loss_difference": outcome.loss_difference,
        "samples_lost": outcome.samples_lost,
        "samples_repeated": outcome.samples_repeated,
    }
    print(json.dumps({**whole, "cells": rows}))
    exact = outcome.loss_difference < LOSS_TOLERANCE and not outcome.samples_lost and not outcome.samples_repeated
    return 0 if exact and not whole["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
