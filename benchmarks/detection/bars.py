"""Issue 4's bars beside what was measured: found, how soon, right, how bad, false; with the bounds that n allows."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.detection.aspects.communication import TraceScore as LinkScore
from benchmarks.detection.traces.cells import Cell
from benchmarks.detection.traces.link_traces import Victim
from benchmarks.detection.traces.score import CellScore, TraceScore, at_least_percent, score_cell
from benchmarks.detection.traces.traces import Scenario

OURS = "Evenkeel"
"""Our detector's name in the scores."""

Scores = dict[str, dict[str, list[TraceScore]]]


def bars(
    scores: Scores,
    slow_links: Mapping[tuple[str, Victim, float], Sequence[LinkScore]],
    cells: Sequence[Cell],
    usual_noise: float,
) -> str:
    """The table of bars, all shapes together."""
    plain = [c for c in cells if c.scenario is Scenario.PERSISTENT and c.noise_percent == usual_noise]

    def pooled(wanted: Callable[[Cell], bool], among: Iterable[Cell]) -> CellScore | None:
        found = [one for cell in among if wanted(cell) for one in scores.get(cell.name, {}).get(OURS, [])]
        return score_cell(found) if found else None

    lines = ["| figure | bar | measured, all shapes (95 %) | n | reached |", "|---|---|---|---|---|"]
    healthy = pooled(lambda cell: cell.slowdown_percent == 0, plain)
    if healthy is not None:
        low, high = healthy.false_per_1000_iterations, healthy.false_at_most_per_1000
        reached = "yes" if high < 0.01 else ("seen so far, n too small" if low < 0.01 else "no")
        lines.append(
            f"| false alarms per 1,000 iterations | < 0.01 | {low:.3f} (at most {high:.4f}) | "
            f"{healthy.num_traces} traces of 300 | {reached} |"
        )
    for slow, least, soon in ((25.0, 99.9, 2), (10.0, 99.5, 6), (5.0, 99.0, 25)):
        score = pooled(lambda cell, slow=slow: cell.slowdown_percent == slow, plain)  # type: ignore[misc]
        if score is not None and score.median_delay is not None:
            lines.append(_found_row(f"{slow:g} % slow: found; iterations", least, soon, score))
    ill = pooled(lambda cell: cell.slowdown_percent >= 5, plain)
    if ill is not None and ill.median_severity_error is not None and ill.right_percent is not None:
        lines.append(
            f"| right culprit; severity error | ≥ 99.5 %; ≤ 2 points | {_share(ill.right_percent)} (at least "
            f"{ill.right_at_least_percent:.2f}); {ill.median_severity_error:.2f} points | {ill.num_faults} victims | "
            f"{_reached(ill.right_percent, ill.right_at_least_percent, 99.5, ill.median_severity_error <= 2)} |"
        )
    links = [one for (_, _, slow), found in slow_links.items() if slow == 25 for one in found if one.has_fault]
    if links:
        lines.append(_communication_row(links))
    two = pooled(lambda cell: cell.scenario is Scenario.TWO_VICTIMS, cells)
    if two is not None and two.found_percent is not None:
        reached = _reached(two.found_percent, two.found_at_least_percent, 97.0, True)
        lines.append(
            f"| two at once, both right | ≥ 97 % | {_share(two.found_percent)} (at least "
            f"{two.found_at_least_percent:.2f}) | {two.num_faults} victims | {reached} |"
        )
    lines.append("| hang: who; how soon | ≥ 99 %; < 2 s or 3 iterations | see [Hangs](#hangs) | | |")
    lines.append("| prediction error, micro-batch; iteration | ≤ 1 %; ≤ 2 % | see [Foretold](#foretold) | | |")
    return "\n".join(lines)


def _communication_row(victims: Sequence[LinkScore]) -> str:
    num_found, num_right = sum(one.found for one in victims), sum(one.right for one in victims)
    found, found_low = 100.0 * num_found / len(victims), at_least_percent(num_found, len(victims))
    right, right_low = 100.0 * num_right / max(num_found, 1), at_least_percent(num_right, num_found)
    reached = _reached(found, found_low, 99.0, right >= 98)
    if reached == "yes" and (right_low is None or right_low < 98):
        reached = "seen so far, n too small"
    return (
        f"| communication slow 25 %: found; right link, endpoint or group | ≥ 99 %; ≥ 98 % | {_share(found)} (at least "
        f"{found_low:.2f}); {_share(right)} (at least {right_low or 0.0:.2f}) | {len(victims)} victims | {reached} |"
    )


def _found_row(figure: str, least: float, soon: int, score: CellScore) -> str:
    assert score.found_percent is not None
    assert score.median_delay is not None
    reached = _reached(score.found_percent, score.found_at_least_percent, least, score.median_delay <= soon)
    return (
        f"| {figure} | ≥ {least:g} %; ≤ {soon} | {_share(score.found_percent)} (at least "
        f"{score.found_at_least_percent:.2f}); {score.median_delay:.0f} | {score.num_faults} victims | {reached} |"
    )


def _share(percent: float) -> str:
    return f"{percent:.2f} %"


def _reached(value: float, at_least: float | None, bar: float, otherwise: bool) -> str:
    if value < bar or not otherwise:
        return "no"
    return "yes" if at_least is not None and at_least >= bar else "seen so far, n too small"
