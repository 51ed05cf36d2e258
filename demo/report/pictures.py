"""The report's pictures: rank x time speeds, throughput with events, loss against the failure-free run.

Each function returns a PNG. Colours are those of Okabe and Ito and a ramp of one hue, so that they can be told apart
without colour vision; nothing but data is drawn inside the axes, legends and event labels stand outside.
"""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.observed.timeline import rank_speed, relative_throughput
from evenkeel.demo.observed.truths import Truth, TruthKind, bound_steps, true_throughputs
from evenkeel.demo.report.summary import loss_differences
from evenkeel.history.vocabulary import PlanState, VerdictKind

BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#6b6b6b"
DEAD_COLOUR = "#d9d9d9"
SPEED_COLOURS = LinearSegmentedColormap.from_list("speed", ["#4a1486", "#8e6bbf", "#d0c4e8", "#f0edf8"])
SPEED_RANGE = (0.4, 1.0)
WIDTH_INCHES = 11.0
DOTS_PER_INCH = 140
LABEL_WIDTH = 0.135
"""Part of the axis that an event label may need: labels closer than this go into different rows."""

LEADER = {"arrowstyle": "-", "color": GREY, "linewidth": 0.9, "linestyle": ":", "shrinkA": 0, "shrinkB": 0}

LABELS = {
    TruthKind.LONG_DOCUMENTS: "long documents",
    TruthKind.COMPUTE_SLOW: "rank {rank} slow, x{throughput:g}",
    TruthKind.RECOVERED: "rank {rank} healed",
    TruthKind.FAIL_STOP: "kill -9 rank {rank}",
    TruthKind.REJOINED: "rank {rank} replaced",
    TruthKind.DETECTOR_KILLED: "kill -9 detector",
    TruthKind.SCHEDULER_KILLED: "kill -9 scheduler",
}


def label_of(truth: Truth) -> str:
    """A truth in two or three words."""
    return LABELS[truth.kind].format(rank=truth.rank, throughput=truth.throughput)


def heat_map(seen: Observations) -> bytes:
    """Rank x time: each device's compute speed relative to healthy, with verdicts on the rows and plans across."""
    figure, axes = _figure(4.3)
    start = seen.started_at
    edges = [0.0] + [entry.committed_at - start for entry in seen.iterations]
    speeds = np.full((seen.num_ranks, len(seen.iterations)), np.nan)
    for column, entry in enumerate(seen.iterations):
        for sample in entry.samples:
            speed = rank_speed(sample, entry, seen.healthy_rank_rate)
            if speed is not None and 0 <= sample.rank < seen.num_ranks:
                speeds[sample.rank, column] = speed
    axes.set_facecolor(DEAD_COLOUR)
    mesh = axes.pcolormesh(
        np.maximum.accumulate(edges),
        np.arange(seen.num_ranks + 1) - 0.5,
        np.ma.masked_invalid(speeds),
        cmap=SPEED_COLOURS,
        vmin=SPEED_RANGE[0],
        vmax=SPEED_RANGE[1],
        shading="flat",
        rasterized=True,
    )
    for border in range(1, seen.num_ranks):
        axes.axhline(border - 0.5, color="white", linewidth=1.5)
    _mark_verdicts(axes, seen)
    for at in _plans_applied(seen):
        axes.axvline(at - start, color=GREEN, linewidth=1.6)
    _mark_events(axes, seen, inside=False)
    axes.set_yticks(range(seen.num_ranks), [f"rank {rank}" for rank in range(seen.num_ranks)])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the first iteration")
    colours = figure.colorbar(mesh, ax=axes, extend="both", pad=0.015, fraction=0.03)
    colours.set_label("compute speed, 1 = healthy")
    _legend(
        axes,
        [
            Line2D([], [], marker="v", linestyle="", color=VERMILION, markersize=9, label="verdict: ill"),
            Line2D([], [], marker="^", linestyle="", color=BLUE, markersize=9, label="verdict: recovered, rejoined"),
            Line2D([], [], color=GREEN, linewidth=1.6, label="plan in force on every rank"),
            Patch(facecolor=DEAD_COLOUR, label="no process, or next to no work"),
        ],
    )
    return _png(figure)


def throughput(seen: Observations) -> bytes:
    """The job's speed relative to healthy on the same micro-batches, with the events and the proportional bound."""
    figure, axes = _figure(4.1)
    start = seen.started_at
    points = [
        (entry.committed_at - start, value)
        for entry in seen.iterations
        if (value := relative_throughput(entry, seen.pace)) is not None
    ]
    times = [at for at, _ in points]
    end = max(times, default=1.0)
    for first, last in _plan_spans(seen):
        axes.axvspan(first - start, last - start, color=GREEN, alpha=0.13, linewidth=0)
    axes.plot(times, [value for _, value in points], color=BLUE, linewidth=1.0, marker="o", markersize=2.6)
    steps = [(start, 1.0), *bound_steps(seen.truths, seen.num_ranks), (start + end, _last_bound(seen))]
    axes.step([at - start for at, _ in steps], [bound for _, bound in steps], where="post", color=ORANGE, linewidth=2.0)
    _mark_events(axes, seen, inside=True)
    axes.set_ylim(0, max([1.15, *(value for _, value in points)]) * 1.02)
    axes.set_xlim(0, end)
    axes.set_xlabel("seconds since the first iteration")
    axes.set_ylabel("throughput,\n1 = healthy on the same documents")
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    _legend(
        axes,
        [
            Line2D([], [], color=BLUE, marker="o", markersize=4, label="measured, one point per iteration"),
            Line2D([], [], color=ORANGE, linewidth=2.0, label="proportional bound: live speeds / number of devices"),
            Patch(facecolor=GREEN, alpha=0.2, label="from the verdict to the plan in force"),
        ],
    )
    return _png(figure)


def loss(seen: Observations) -> bytes:
    """Loss of the run over that of the failure-free run, and their relative difference below."""
    figure = Figure(figsize=(WIDTH_INCHES, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, 1])
    _clean(upper)
    _clean(lower)
    compared = range(len(seen.reference_losses))
    upper.plot(compared, seen.reference_losses, color=ORANGE, linewidth=4.5, alpha=0.55, solid_capstyle="round")
    own = [(entry.iteration, entry.loss) for entry in seen.iterations if entry.loss is not None]
    upper.plot([k for k, _ in own], [value for _, value in own], color=BLUE, linewidth=1.1)
    upper.set_ylabel("loss, nats per token")
    upper.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    floor = 1e-9
    differences = loss_differences(seen)
    # Limits first: a log axis without any data cannot choose its own.
    lower.set_yscale("log")
    lower.set_ylim(floor * 0.6, 1e-4)
    values = [max(value, floor) for _, value in differences]
    lower.plot([k for k, _ in differences], values, color=BLUE, linewidth=0, marker=".", markersize=4)
    lower.axhline(1e-5, color=VERMILION, linewidth=1.4, linestyle="--")
    lower.set_ylabel("relative\ndifference")
    lower.set_xlabel("iteration")
    for axes in (upper, lower):
        for truth in seen.truths:
            axes.axvline(truth.iteration, color=GREY, linewidth=0.8, linestyle=":")
    _label_rows(upper, [(float(truth.iteration), label_of(truth)) for truth in seen.truths])
    _legend(
        lower,
        [
            Line2D([], [], color=BLUE, linewidth=1.5, label="this run, with its failures"),
            Line2D([], [], color=ORANGE, linewidth=4.5, alpha=0.55, label="failure-free run of the same seed"),
            Line2D([], [], color=VERMILION, linestyle="--", label="promised bound of the difference, 1e-5"),
        ],
        below=0.62,
    )
    return _png(figure)


def _figure(height_inches: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _clean(axes)
    return figure, axes


def _clean(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.margins(x=0.0)


def _mark_verdicts(axes: Axes, seen: Observations) -> None:
    better = {VerdictKind.RECOVERED, VerdictKind.REJOINED}
    for verdict in seen.log.verdicts:
        for culprit in verdict.culprits:
            good = verdict.kind in better
            axes.plot(
                verdict.decided_at - seen.started_at,
                culprit.rank,
                marker="^" if good else "v",
                color=BLUE if good else VERMILION,
                markersize=9,
                markeredgecolor="white",
                markeredgewidth=1.0,
                zorder=5,
            )


def _mark_events(axes: Axes, seen: Observations, *, inside: bool) -> None:
    for truth in seen.truths:
        axes.axvline(
            truth.at - seen.started_at,
            color=GREY,
            linewidth=0.9,
            linestyle=":",
            ymax=1.0,
            zorder=1 if inside else 3,
        )
    _label_rows(axes, [(truth.at - seen.started_at, label_of(truth)) for truth in seen.truths])


def _label_rows(axes: Axes, labels: Sequence[tuple[float, str]]) -> None:
    """Write labels above the axes at their x; those that would overlap go one row higher."""
    low, high = axes.get_xlim()
    row_ends: list[float] = []
    for at, text in sorted(labels):
        place = (at - low) / max(high - low, 1e-9)
        leans_left = place > 1 - LABEL_WIDTH
        first, last = (place - LABEL_WIDTH, place) if leans_left else (place, place + LABEL_WIDTH)
        row = next((number for number, end in enumerate(row_ends) if end <= first), len(row_ends))
        row_ends[row : row + 1] = [last]
        height = 3 + 13 * row
        for content, offset, leader in (
            ("", (0, height + 11), LEADER),
            (text, (-3 if leans_left else 3, height), None),
        ):
            axes.annotate(
                content,
                xy=(at, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=offset,
                textcoords="offset points",
                ha="right" if leans_left else "left",
                va="bottom",
                fontsize=8.5,
                color="#333333",
                arrowprops=leader,
                bbox=None if leader else {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
                zorder=4 if leader else 5,
                annotation_clip=False,
            )


def _plans_applied(seen: Observations) -> list[float]:
    return [plan.at for plan in seen.log.plans if plan.state is PlanState.APPLIED]


def _plan_spans(seen: Observations) -> list[tuple[float, float]]:
    """From the verdict that led to a plan (the last one before it) to the moment every rank ran it."""
    spans = []
    for plan in seen.log.plans_newest():
        states = seen.log.states_of(plan.plan_id)
        proposed, applied = states.get(PlanState.PROPOSED), states.get(PlanState.APPLIED)
        if proposed and applied:
            decided = [verdict.decided_at for verdict in seen.log.verdicts if verdict.decided_at <= proposed.at]
            spans.append((max(decided, default=proposed.at), applied.at))
    return spans


def _last_bound(seen: Observations) -> float:
    return sum(true_throughputs(seen.truths, seen.num_ranks, float("inf"))) / seen.num_ranks


def _legend(axes: Axes, handles: Sequence[Line2D | Patch], *, below: float = 0.17) -> None:
    axes.legend(
        handles=list(handles),
        loc="upper center",
        bbox_to_anchor=(0.5, -below),
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        handlelength=1.8,
    )


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()
