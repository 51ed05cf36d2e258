"""The demo's scenario against the failure-free run: ``python -m benchmarks.engine.loss_against_reference``.

Plays the whole script (slow device, recovery, death, replacement, services killed) in float32 and again in float64, and
prints the largest relative difference of any iteration's loss. If only rounding differs, float64 is nine orders better.
"""

import argparse
import asyncio
import json
from pathlib import Path

from rich.console import Console

from evenkeel.demo.live import choose_view
from evenkeel.demo.performance import perform
from evenkeel.demo.report.summary import loss_differences, samples_lost, samples_repeated
from evenkeel.stack.stack import Stack


def main() -> None:
    """Runs the scenario once per number type, prints the table, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"], choices=["float32", "float64"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/loss_against_reference.json"))
    options = parser.parse_args()
    results = []
    for dtype in options.dtypes:
        with Stack("benchmark", keep_data=False) as stack, choose_view(Console(stderr=True)) as view:
            seen = asyncio.run(perform(stack, options.seed, view, stack.folder / "job", dtype=dtype))
        differences = loss_differences(seen)
        worst = max(differences, key=lambda one: one[1], default=(-1, float("nan")))
        results.append(
            {
                "dtype": dtype,
                "iterations": len(differences),
                "epochs": seen.log.last_epoch + 1,
                "largest_relative_difference": worst[1],
                "at_iteration": worst[0],
                "samples_lost": samples_lost(seen),
                "samples_repeated": samples_repeated(seen),
            }
        )
    print("| " + " | ".join(results[0]) + " |")
    print("|" + "---|" * len(results[0]))
    for result in results:
        print("| " + " | ".join(str(value) for value in result.values()) + " |")
    print(json.dumps(results))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
