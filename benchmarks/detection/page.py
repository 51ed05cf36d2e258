"""Scores to tables: ``python -m benchmarks.detection.page`` writes ``docs/benchmarks/detection.md``.

The words of the page are in ``page.md`` beside this file; ``<!-- name -->`` in it becomes the table of that name.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.detection import bars
from benchmarks.detection.aspects import communication, hangs, kinds, prediction
from benchmarks.detection.live.__main__ import OUT, OUTCOMES
from benchmarks.detection.live.cases import Load
from benchmarks.detection.recorded.recordings import read_outcomes, summary_of, table_of
from benchmarks.detection.traces.cells import Cell, grid
from benchmarks.detection.traces.score import CellScore, TraceScore, score_cell
from benchmarks.detection.traces.simulated_run import OPERATION_NOISE_SIGMA, SHAPES
from benchmarks.detection.traces.traces import Scenario

SCORES = Path("out/benchmarks/detection/scores.jsonl")
TEMPLATE = Path(__file__).with_name("page.md")
PAGE = Path("docs/benchmarks/detection.md")

HEADINGS = (
    "what",
    "slow %",
    "detector",
    "traces",
    "found % (95 %: at least)",
    "delay",
    "p95",
    "severity error",
    "right % (at least)",
    "false / 1000 it (at most)",
)
SHOWN = (0.0, 5.0, 10.0, 25.0)
SHOWN_BESIDE_OTHERS = (0.0, 25.0)
"""Slowdowns of the tables, in per cent."""
_USUAL_NOISE = 100 * OPERATION_NOISE_SIGMA

Results = dict[str, dict[str, CellScore]]


def results_of(path: Path) -> Results:
    """Cell and detector to score, from the lines that a run wrote."""
    return {cell: {name: score_cell(scores) for name, scores in by.items()} for cell, by in scores_of(path).items()}


def scores_of(path: Path) -> dict[str, dict[str, list[TraceScore]]]:
    """Cell and detector to the score of every trace."""
    found: dict[str, dict[str, list[TraceScore]]] = {}
    with path.open() as file:
        for row in map(json.loads, file):
            for detector, score in row["scores"].items():
                found.setdefault(row["cell"], {}).setdefault(detector, []).append(TraceScore(**score))
    return found


def table(results: Results, cells: Sequence[Cell]) -> str:
    """One row a cell and detector, as Markdown; cells without results are left out."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for cell in cells:
        for detector, score in results.get(cell.name, {}).items():
            lines.append(_row(cell, detector, score))
    return "\n".join(lines)


def _row(cell: Cell, detector: str, score: CellScore) -> str:
    what = cell.shape.replace("x", " x ")
    if cell.scenario is not Scenario.PERSISTENT:
        what += f", {cell.scenario.replace('_', ' ')}"
    if cell.noise_percent != _USUAL_NOISE:
        what += f", noise {cell.noise_percent:g} %"
    cells = (
        what,
        f"{cell.slowdown_percent:g}",
        detector,
        str(score.num_traces),
        _bounded(score.found_percent, score.found_at_least_percent, 1),
        _shown(score.median_delay, 0),
        _shown(score.p95_delay, 0),
        _shown(score.median_severity_error, 2),
        _bounded(score.right_percent, score.right_at_least_percent, 1),
        _bounded(score.false_per_1000_iterations, score.false_at_most_per_1000, 3),
    )
    return "| " + " | ".join(cells) + " |"


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _bounded(value: float | None, bound: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f} ({_shown(bound, digits)})"


def tables() -> dict[str, str]:
    """Every table of the page by its name."""
    results = results_of(SCORES)
    cells = [cell for cell, _ in grid(list(SHAPES), 1)]
    ours = {cell: {bars.OURS: by[bars.OURS]} for cell, by in results.items() if bars.OURS in by}
    shown = [cell for cell in cells if cell.slowdown_percent in SHOWN]
    plain = [c for c in shown if c.scenario is Scenario.PERSISTENT and c.noise_percent == _USUAL_NOISE]
    small = [
        cell for cell in plain if cell.shape == next(iter(SHAPES)) and cell.slowdown_percent in SHOWN_BESIDE_OTHERS
    ]
    found = {"ours": table(ours, shown), "published": table(results, small)}
    slow_links = communication.scores_of(communication.LINES) if communication.LINES.exists() else {}
    found["bars"] = bars.bars(scores_of(SCORES), slow_links, cells, _USUAL_NOISE)
    found["kinds"] = kinds.table(kinds.LINES) if kinds.LINES.exists() else "Not run."
    found["hangs"] = hangs.TABLE.read_text() if hangs.TABLE.exists() else "Not run."
    found["communication"] = communication.table(communication.LINES) if communication.LINES.exists() else "Not run."
    found |= {"live": _live(OUT, busy=False), "busy": _live(OUT, busy=True)}
    found["prediction"] = prediction.table(prediction.LINES) if prediction.LINES.exists() else "Not run."
    return found


def _live(folder: Path, *, busy: bool | None = None) -> str:
    path = folder / OUTCOMES
    if not path.exists():
        return "Not run."
    outcomes = [one for one in read_outcomes(path) if busy in (None, Load.BUSY in one.name)]
    return f"{table_of(outcomes)}\n{summary_of(outcomes)}"


def main() -> None:
    """Writes the page."""
    known = tables()
    text = re.sub(r"<!-- ([\w ]+) -->", lambda match: known[match[1]], TEMPLATE.read_text())
    PAGE.write_text(text)
    print(f"{PAGE} written")


if __name__ == "__main__":
    main()
