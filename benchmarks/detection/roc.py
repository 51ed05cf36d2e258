"""Found against false alarms as each detector's own threshold moves: ``python -m benchmarks.detection.roc``.

Half of the traces are healthy. Every threshold of every detector sees the same traces. Writes JSON and, with
``--picture``, a PNG. A false alarm accuses a healthy rank, or stops the job to validate and finds nobody. Validation
is free of noise here and names whoever is slower by a hundredth, which flatters those who validate.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.detection.baselines.fixed_ratio import FixedRatio
from benchmarks.detection.baselines.greyhound import Greyhound
from benchmarks.detection.baselines.relative_scores import RelativeScores
from benchmarks.detection.baselines.resihp import ResiHP
from benchmarks.detection.finding import Contender
from benchmarks.detection.ours import Evenkeel
from benchmarks.detection.score import TraceScore, score_cell, score_trace
from benchmarks.detection.traces import SHAPES, Scenario, make_trace

SWEEPS: dict[str, tuple[tuple[float, Contender], ...]] = {
    "Evenkeel: iterations per false alarm": tuple(
        (budget, Evenkeel(iterations_per_false_alarm=budget)) for budget in (10.0, 1e3, 1e5, 1e8)
    ),
    "ResiHP: ratio to predicted": tuple(
        (ratio, ResiHP(ratio=ratio, suspect_ratio=1.01)) for ratio in (1.01, 1.03, 1.05, 1.1, 1.25)
    ),
    "Greyhound: least change": tuple(
        (change, Greyhound(min_change=change, suspect_ratio=1.01)) for change in (0.01, 0.03, 0.05, 0.1, 0.2)
    ),
    "relative scores: threshold": tuple(
        (score, RelativeScores(threshold=score)) for score in (0.99, 0.97, 0.95, 0.9, 0.8, 0.7)
    ),
    "ratio to median": tuple((ratio, FixedRatio(ratio=ratio)) for ratio in (1.03, 1.05, 1.1, 1.2, 1.3, 1.5)),
}


def main() -> None:
    """Parses the arguments, sweeps, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="4x2x2", choices=sorted(SHAPES))
    parser.add_argument("--slowdown", type=float, default=5.0, metavar="PERCENT")
    parser.add_argument("--scenario", type=Scenario, choices=list(Scenario), default=Scenario.PERSISTENT)
    parser.add_argument("--traces", type=int, default=40, help="in all, half of them healthy")
    parser.add_argument("--iterations", type=int, default=300, help="iterations a trace")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/detection_roc.json"))
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    scores: dict[str, list[list[TraceScore]]] = {name: [[] for _ in sweep] for name, sweep in SWEEPS.items()}
    for seed in range(arguments.traces):
        trace = make_trace(
            seed,
            shape=arguments.shape,
            num_iterations=arguments.iterations,
            slowdown_percent=arguments.slowdown if seed % 2 else 0.0,
            scenario=arguments.scenario,
        )
        for name, sweep in SWEEPS.items():
            for kept, (_, contender) in zip(scores[name], sweep, strict=True):
                kept.append(score_trace(trace, contender.findings(trace)))
    curves = {
        name: [
            {"threshold": threshold, **asdict(score_cell(kept))}
            for kept, (threshold, _) in zip(scores[name], sweep, strict=True)
        ]
        for name, sweep in SWEEPS.items()
    }
    for name, curve in curves.items():
        for point in curve:
            print(
                f"{name} {point['threshold']:g}: found {point['found_percent']:.1f} %, "
                f"{point['false_per_1000_iterations']:.3f} false alarms per 1000 iterations"
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"traces": arguments.traces, "curves": curves}, indent=1))
    if arguments.picture is not None:
        what = f"{arguments.slowdown:g} % slow, {arguments.scenario}, {arguments.shape}"
        title = f"{what}, {arguments.traces} traces (simulated)"
        _draw(curves, title, arguments.picture)


def _draw(curves: dict[str, list[dict[str, float]]], title: str, path: Path) -> None:
    """One line a detector; the axis of false alarms is linear near 0, so that none can be shown."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, curve in curves.items():
        points = sorted((point["false_per_1000_iterations"], point["found_percent"]) for point in curve)
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(left=-0.01)
    axes.set_ylim(-3, 103)
    axes.set_xlabel("false alarms per 1000 iterations")
    axes.set_ylabel("victims found, %")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
