"""The series detector on real runs: ``python -m benchmarks.detection.recorded.real_series``.

As they are: every verdict that accuses hardware is printed and drawn. Then with +5, +10, +25 % from a random iteration
on, put in by multiplication: how many are found, how soon, and an ROC over the operator's budget, beside a fixed ratio
to the running median. Runs of MLPerf Training (GPT-3 175B, Llama 3.1 405B), up to 10,752 GPUs; nothing is simulated but
the slowdown.
"""

import argparse
import bisect
import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np

from evenkeel.offline.series.finding import Iteration, SeriesVerdict, SeriesVerdictKind
from evenkeel.offline.series.series import SeriesDetector

mpl.use("Agg")
import matplotlib.pyplot as plt

SIZES = (5, 10, 25)
BUDGETS = (10.0, 100.0, 1e3, 1e5, 1e7)
OPERATING_BUDGET = 1e5
RATIOS = (1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.2)
_STEPS = ("steps_gpt3.csv.gz", "steps_llama31_405b.csv.gz")
_MARKS = ("marks_gpt3.csv.gz", "marks_llama31_405b.csv.gz")
_PAUSES = ("eval_", "block_")
_MARGIN_MS = 1.0
_WINDOW = 50
_IN_A_ROW = 3

Series = list[Iteration]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A run with a slowdown put in from ``onset`` on."""

    series: Series
    onset: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One detector at one setting on one size: parts of the runs, and iterations from onset to verdict."""

    detector: str
    setting: float
    slowdown_percent: float
    found: float
    false_per_run: float
    median_delay: float
    p95_delay: float


def load(steps_folder: Path, marks_folder: Path) -> dict[int, Series]:
    """Every run; iterations in which an evaluation or a block begins or ends are planned pauses."""
    marks: dict[int, list[float]] = {}
    for row in _rows(marks_folder, _MARKS):
        if row["event"].startswith(_PAUSES):
            marks.setdefault(int(row["run"]), []).append(float(row["time_ms"]))
    for times in marks.values():
        times.sort()
    runs: dict[int, Series] = {}
    began: dict[int, float] = {}
    for row in _rows(steps_folder, _STEPS):
        run, ended, seconds = int(row["run"]), float(row["time_ms"]), float(row["step_s"])
        since = began.get(run, ended - 1000 * seconds)
        times = marks.get(run, [])
        following = bisect.bisect_left(times, since - _MARGIN_MS)
        planned = following < len(times) and times[following] <= ended + _MARGIN_MS
        runs.setdefault(run, []).append(Iteration(iteration=int(row["i"]), seconds=seconds, planned=planned))
        began[run] = ended
    return runs


def _rows(folder: Path, names: Sequence[str]) -> Iterator[dict[str, str]]:
    for name in names:
        with gzip.open(folder / name, "rt") as lines:
            yield from csv.DictReader(lines)


def inject(series: Series, percent: float, random: np.random.Generator) -> Injected:
    """The run with everything from a random iteration on slower; at least 50 iterations from either end."""
    onset = int(random.integers(50, len(series) - 50))
    factor = 1 + percent / 100
    slow = [one if place < onset else replace(one, seconds=factor * one.seconds) for place, one in enumerate(series)]
    return Injected(series=slow, onset=onset, factor=factor)


def verdicts_of(series: Series, budget: float) -> list[SeriesVerdict]:
    """Verdicts that say that the job is slow."""
    detector = SeriesDetector("run", iterations_per_false_alarm=budget)
    found = [verdict for one in series for verdict in detector.observe(one)]
    return [verdict for verdict in found if verdict.kind is SeriesVerdictKind.JOB_SLOW]


def by_ratio(series: Series, ratio: float) -> list[int]:
    """A fixed ratio to the running median, three in a row, as rules of thumb go: places at which it says slow."""
    seconds = [one.seconds for one in series if not one.planned]
    places = [place for place, one in enumerate(series) if not one.planned]
    found, row, skipped_until = [], 0, _WINDOW // 2
    for place in range(_WINDOW // 2, len(seconds)):
        usual = float(np.median(seconds[max(0, place - row - _WINDOW) : place - row]))
        row = min(row + 1, _IN_A_ROW) if seconds[place] > ratio * usual else 0
        if row >= _IN_A_ROW and place >= skipped_until:
            found.append(places[place])
            skipped_until = place + _WINDOW
    return found


def scores(runs: dict[int, Series]) -> list[Score]:
    """Both detectors at all their settings on all sizes."""
    found: list[Score] = []
    healthy = {
        **{("evenkeel", budget): [len(verdicts_of(one, budget)) for one in runs.values()] for budget in BUDGETS},
        **{("fixed ratio", ratio): [len(by_ratio(one, ratio)) for one in runs.values()] for ratio in RATIOS},
    }
    for percent in SIZES:
        random = np.random.default_rng(percent)
        traces = [inject(one, percent, random) for one in runs.values()]
        for (detector, setting), false in healthy.items():
            delays = [_delay(trace, detector, setting) for trace in traces]
            hits = np.array([delay for delay in delays if delay is not None])
            found.append(
                Score(
                    detector=detector,
                    setting=setting,
                    slowdown_percent=percent,
                    found=len(hits) / len(traces),
                    false_per_run=float(np.mean(false)),
                    median_delay=float(np.median(hits)) if len(hits) else float("nan"),
                    p95_delay=float(np.percentile(hits, 95)) if len(hits) else float("nan"),
                )
            )
    return found


def _delay(trace: Injected, detector: str, setting: float) -> int | None:
    """Iterations from the onset to the first verdict after it."""
    if detector == "evenkeel":
        first = trace.series[0].iteration
        decided = [verdict.decided_iteration - first for verdict in verdicts_of(trace.series, setting)]
    else:
        decided = by_ratio(trace.series, setting)
    after = [place - trace.onset + 1 for place in decided if place >= trace.onset]
    return after[0] if after else None


def draw_series(runs: dict[int, Series], accused: dict[int, list[SeriesVerdict]], path: Path) -> None:
    """A contact sheet: every run over its median, planned pauses grey, verdicts red."""
    columns = 13
    figure, axes = plt.subplots(-(-len(runs) // columns), columns, figsize=(19.5, 9), sharey=True)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (run, series) in zip(axes.flat, runs.items(), strict=False):
        seconds = np.array([one.seconds for one in series])
        axis.plot(seconds / np.median(seconds), lw=0.5, color="#1f4e79")
        paused = [place for place, one in enumerate(series) if one.planned]
        axis.plot(paused, np.full(len(paused), 0.92), "|", color="#aaaaaa", ms=3)
        for verdict in accused.get(run, []):
            axis.axvline(verdict.first_iteration - series[0].iteration, color="#c00000", lw=1)
        axis.set_ylim(0.9, 1.3)
        axis.set_title(f"run {run}", fontsize=6, pad=1)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=60)
    plt.close(figure)


def draw_roc(found: Sequence[Score], path: Path) -> None:
    """Found against false alarms a run, one panel a size."""
    figure, axes = plt.subplots(1, len(SIZES), figsize=(9, 3), sharey=True)
    for axis, percent in zip(axes, SIZES, strict=True):
        for detector, color, marker in (("evenkeel", "#1f4e79", "o"), ("fixed ratio", "#c07000", "s")):
            mine = [one for one in found if one.detector == detector and one.slowdown_percent == percent]
            x, y = [max(one.false_per_run, 0.005) for one in mine], [100 * one.found for one in mine]
            axis.plot(x, y, marker=marker, ms=4, color=color, label=detector)
        axis.set_xscale("log")
        axis.set_title(f"+{percent} %", fontsize=9)
        axis.set_xlabel("false verdicts a run (0 drawn at 0.005)", fontsize=7)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("found, %")
    axes[0].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main() -> None:
    """Runs all, prints tables, writes pictures and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).parents[1]
    parser.add_argument("--steps", type=Path, default=here.parents[1] / "simulator" / "data", help="steps_*.csv.gz")
    parser.add_argument("--marks", type=Path, default=here / "data", help="folder with marks_*.csv.gz")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = load(arguments.steps, arguments.marks)
    accused = {run: verdicts_of(series, OPERATING_BUDGET) for run, series in runs.items()}
    num_iterations = sum(len(series) for series in runs.values())
    print(f"{len(runs)} runs, {num_iterations} iterations, {sum(map(len, accused.values()))} slow verdicts as they are")
    for run, verdicts in accused.items():
        for verdict in verdicts:
            where = f"from {verdict.first_iteration}, decided at {verdict.decided_iteration}"
            print(f"run {run}: {where}, throughput {verdict.throughput:.3f}")
    draw_series(runs, accused, arguments.out / "real_series.png")
    found = scores(runs)
    draw_roc(found, arguments.out / "real_series_roc.png")
    print("| slow % | detector | setting | found % | false a run | delay | p95 |\n|---|---|---|---|---|---|---|")
    for one in found:
        print(
            f"| {one.slowdown_percent:g} | {one.detector} | {one.setting:g} | {100 * one.found:.1f} | "
            f"{one.false_per_run:.3f} | {one.median_delay:g} | {one.p95_delay:g} |"
        )
    plain = [{name: getattr(one, name) for name in Score.__dataclass_fields__} for one in found]
    (arguments.out / "real_series.json").write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
