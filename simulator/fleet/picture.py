"""Pictures of simulated runs: throughput over time, one line a system, under the bound. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from evenkeel.simulator.fleet.result import RunResult, Segment

mpl.use("Agg")

from matplotlib import pyplot as plt

SHORTEST_PART = 1.0 / 300.0


def _lasting(result: RunResult) -> list[Segment]:
    shortest = SHORTEST_PART * result.duration_seconds
    kept = [each for each in result.segments if each.until_seconds - each.from_seconds >= shortest]
    return kept or list(result.segments)


def draw_runs(path: Path, title: str, results: Sequence[RunResult]) -> None:
    """Draws the runs into a file; the kind follows from its suffix.

    What lasts less than a 300th of the run (pauses, mostly) is not drawn: the means in the legend hold it.

    Raises:
        ValueError: No runs, or a suffix that matplotlib does not know.
        OSError: The file cannot be written.
    """
    if not results:
        raise ValueError("no runs to draw")
    figure, axes = plt.subplots(figsize=(12.0, 4.5), layout="constrained")
    try:
        for result in results:
            shown = _lasting(result)
            hours = [each.from_seconds / 3600.0 for each in shown] + [result.duration_seconds / 3600.0]
            rates = [100.0 * each.rate for each in shown]
            label = f"{result.strategy} ({100.0 * result.throughput:.1f} %)"
            axes.stairs(rates, hours, label=label, linewidth=1.2, baseline=None)
        first = results[0]
        hours = [each.from_seconds / 3600.0 for each in first.segments] + [first.duration_seconds / 3600.0]
        bounds = [100.0 * each.bound for each in first.segments]
        bound = f"proportional bound ({100.0 * first.bound:.1f} %)"
        axes.stairs(bounds, hours, label=bound, color="black", linestyle="--", linewidth=1.0, baseline=None)
        axes.set(title=f"{title} (simulated)", xlabel="hours", ylabel="throughput, % of fault-free", ylim=(0.0, 110.0))
        figure.legend(fontsize="small", loc="outside right upper")
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)
