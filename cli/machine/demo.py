"""``evenkeel demo``: the main job through its failures, with a report."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from evenkeel.contracts.interrupts import ending_on_interrupt


def demo(
    seed: Annotated[int, typer.Option(help="Seed of the model and the data.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("out/demo"),
) -> None:
    """Run the main job through its failures on a stack of its own, show it live and write a report.

    Exit status 1 when an expectation did not hold.

    Example: evenkeel demo --out out/demo
    """
    # Late: the demo loads the plotting library, which no other command needs.
    with ending_on_interrupt():
        main = importlib.import_module("evenkeel.demo.main").main
    raise typer.Exit(int(main(["--seed", str(seed), "--out", str(out)])))
