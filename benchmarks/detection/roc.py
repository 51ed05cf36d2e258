"""Found against false alarms as each detector's own threshold moves: ``python -m benchmarks.detection.roc``.

Half of the traces are healthy. Every threshold of every detector sees the same traces. A trace's scores are a line of
``--out`` as soon as they are known, and a run that was stopped goes on; ``--picture`` draws a PNG of what there is.
A false alarm accuses a healthy rank, or stops the job to validate and finds nobody. Validation is free of noise here
and names whoever is slower by a hundredth, which flatters those who validate.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.detection.baselines.finding import Contender
from benchmarks.detection.baselines.fixed_ratio import FixedRatio
from benchmarks.detection.baselines.greyhound import Greyhound
from benchmarks.detection.baselines.ours import Evenkeel
from benchmarks.detection.baselines.relative_scores import RelativeScores
from benchmarks.detection.baselines.resihp import ResiHP
from benchmarks.detection.traces.score import CellScore, TraceScore, score_cell, score_trace
from benchmarks.detection.traces.simulated_run import SHAPES
from benchmarks.detection.traces.traces import Scenario, Trace, make_trace

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


Curves = dict[str, list[tuple[float, CellScore]]]


def sweep(trace_of: Callable[[int], Trace], num_traces: int, path: Path) -> None:
    """Every threshold of every detector over every trace that ``path`` does not have yet; a line a trace."""
    done = {row["seed"] for row in map(json.loads, path.read_text().splitlines())} if path.exists() else set()
    for seed in range(num_traces):
        if seed in done:
            continue
        trace = trace_of(seed)
        scores = {
            name: [asdict(score_trace(trace, contender.findings(trace))) for _, contender in thresholds]
            for name, thresholds in SWEEPS.items()
        }
        with path.open("a") as file:
            file.write(json.dumps({"seed": seed, "scores": scores}) + "\n")


def curves_of(path: Path) -> tuple[int, Curves]:
    """Number of traces in the lines, and each detector's thresholds with what they gave."""
    rows = [json.loads(line)["scores"] for line in path.read_text().splitlines()]
    return len(rows), {
        name: [
            (threshold, score_cell([TraceScore(**row[name][place]) for row in rows]))
            for place, (threshold, _) in enumerate(thresholds)
        ]
        for name, thresholds in SWEEPS.items()
    }


def main() -> None:
    """Parses the arguments, sweeps what is not there yet, prints and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="4x2x2", choices=sorted(SHAPES))
    parser.add_argument("--slowdown", type=float, default=5.0, metavar="PERCENT")
    parser.add_argument("--scenario", type=Scenario, choices=list(Scenario), default=Scenario.PERSISTENT)
    parser.add_argument("--traces", type=int, default=60, help="in all, half of them healthy")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/detection"), help="folder")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()

    def trace_of(seed: int) -> Trace:
        slowdown = arguments.slowdown if seed % 2 else 0.0
        return make_trace(seed, shape=arguments.shape, slowdown_percent=slowdown, scenario=arguments.scenario)

    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"roc-{arguments.shape}-{arguments.scenario}-{arguments.slowdown:g}.jsonl"
    sweep(trace_of, arguments.traces, path)
    count, curves = curves_of(path)
    for name, curve in curves.items():
        for threshold, score in curve:
            print(
                f"{name} {threshold:g}: found {score.found_percent:.1f} %, "
                f"{score.false_per_1000_iterations:.3f} false alarms per 1000 iterations"
            )
    if arguments.picture is not None:
        what = f"{arguments.slowdown:g} % slow, {arguments.scenario}, {arguments.shape}"
        _draw(curves, f"{what}, {count} traces (simulated)", arguments.picture)


def _draw(curves: Curves, title: str, path: Path) -> None:
    """One line a detector; the axis of false alarms is linear near 0, so that none can be shown."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, curve in curves.items():
        points = sorted((score.false_per_1000_iterations, score.found_percent or 0.0) for _, score in curve)
        # Ours as a ring, so that neither hides the other where they meet.
        ours = name.startswith("Evenkeel")
        style = {"markersize": 11, "fillstyle": "none", "markeredgewidth": 2.5} if ours else {"markersize": 4}
        axes.plot(*zip(*points, strict=True), marker="o", label=name, **style)
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
