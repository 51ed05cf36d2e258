"""Pictures of simulated runs: throughput over time, one line a system, under the bound. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from simulator.fleet.result import RunResult

mpl.use("Agg")

from matplotlib import pyplot as plt


def draw_runs(path: Path, title: str, results: Sequence[RunResult]) -> None:
    """Draws the runs into a file; the kind follows from its suffix.

    Raises:
        ValueError: No runs, or a suffix that matplotlib does not know.
        OSError: The file cannot be written.
    """
    if not results:
        raise ValueError("no runs to draw")
    figure, axes = plt.subplots(figsize=(10.0, 5.0), layout="constrained")
    try:
        for result in results:
            hours = [each.from_seconds / 3600.0 for each in result.segments] + [result.duration_seconds / 3600.0]
            rates = [100.0 * each.rate for each in result.segments]
            label = f"{result.strategy} ({100.0 * result.throughput:.1f} %)"
            axes.stairs(rates, hours, label=label, linewidth=1.2, baseline=None)
        first = results[0]
        hours = [each.from_seconds / 3600.0 for each in first.segments] + [first.duration_seconds / 3600.0]
        bounds = [100.0 * each.bound for each in first.segments]
        bound = f"proportional bound ({100.0 * first.bound:.1f} %)"
        axes.stairs(bounds, hours, label=bound, color="black", linestyle="--", linewidth=1.0, baseline=None)
        axes.set(title=f"{title} (simulated)", xlabel="hours", ylabel="throughput, % of fault-free", ylim=(0.0, 110.0))
        axes.legend(fontsize="small", loc="lower left")
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)
