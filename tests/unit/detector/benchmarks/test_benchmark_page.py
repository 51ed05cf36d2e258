"""The benchmark's page says what its runs found, with the bounds that their number allows."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.detection.aspects.communication import TraceScore
from benchmarks.detection.aspects.communication import table as communication_table
from benchmarks.detection.bars import bars
from benchmarks.detection.page import results_of, scores_of, table
from benchmarks.detection.traces.cells import Cell, grid
from benchmarks.detection.traces.link_traces import Victim
from benchmarks.detection.traces.score import at_least_percent, at_most


def lines(path: Path, cell: Cell, count: int, *, found: int, false: int = 0) -> None:
    with path.open("a") as file:
        for index in range(count):
            hit = index < found
            score = {
                "num_iterations": 300,
                "num_faults": int(cell.slowdown_percent > 0),
                "num_found": int(hit and cell.slowdown_percent > 0),
                "delays": [2] if hit and cell.slowdown_percent > 0 else [],
                "severity_errors": [0.2] if hit and cell.slowdown_percent > 0 else [],
                "num_false": int(index < false),
            }
            file.write(json.dumps({"cell": cell.name, "index": index, "scores": {"Evenkeel": score}}) + "\n")


def test_bounds_are_those_of_the_binomial_and_the_poisson() -> None:
    assert at_least_percent(100, 100) == pytest.approx(97.05, abs=0.01)
    assert at_least_percent(99, 100) == pytest.approx(94.55, abs=0.01)
    assert at_least_percent(0, 10) == 0.0
    assert at_least_percent(0, 0) is None
    assert at_most(0) == pytest.approx(3.0, abs=0.01)
    assert at_most(1) == pytest.approx(5.57, abs=0.01)


def test_a_bar_is_reached_only_where_there_were_enough_traces(tmp_path: Path) -> None:
    path, slow, healthy = (
        tmp_path / "scores",
        Cell(shape="4x2x2", slowdown_percent=5.0),
        Cell(shape="4x2x2", slowdown_percent=0.0),
    )
    lines(path, slow, 100, found=100)
    lines(path, healthy, 10, found=0, false=1)
    text = bars(scores_of(path), {}, [slow, healthy], slow.noise_percent)
    assert "5 % slow" in text
    assert "seen so far, n too small" in text
    assert "| false alarms per 1,000 iterations | < 0.01 | 0.333" in text
    lines(path, slow, 300, found=300)
    assert "| 100.00 % (at least 99.25); 2 | 400 victims | yes |" in bars(
        scores_of(path), {}, [slow], slow.noise_percent
    )
    lines(path, slow, 50, found=0)
    assert "| 450 victims | no |" in bars(scores_of(path), {}, [slow], slow.noise_percent)
    assert "| 4 x 2 x 2 | 5 | Evenkeel | 450 |" in table(results_of(path), [slow])


def link_scores(count: int, *, right: int) -> list[TraceScore]:
    return [TraceScore(num_iterations=300, has_fault=True, found=True, right=index < right) for index in range(count)]


def test_slow_links_are_right_when_enough_of_those_found_name_the_victim(tmp_path: Path) -> None:
    cell = "4x2x2", Victim.LINK, 25.0
    for count, right, reached in (
        (60, 60, "seen so far, n too small"),
        (600, 599, "yes"),
        (600, 580, "no"),
        (600, 588, "seen so far, n too small"),
    ):
        text = bars({}, {cell: link_scores(count, right=right)}, [], 0.4)
        assert f"| {count} victims | {reached} |" in text
    row = {"shape": "4x2x2", "victim": "link", "slowdown_percent": 25.0, "seed": 0}
    lines_of = [json.dumps({**row, "score": asdict(one)}) for one in link_scores(40, right=39)]
    (tmp_path / "lines").write_text("\n".join(lines_of))
    assert "| 4 x 2 x 2 | link | 25 | 40 | 100.0 (92.8) | 97.5 (86.8) |" in communication_table(tmp_path / "lines")


def test_half_of_all_traces_are_healthy_and_no_two_cells_share_a_seed() -> None:
    cells = grid(["4x2x2", "4x2x4"], 200)
    plain = [(cell, count) for cell, count in cells if cell.noise_percent < 1 and cell.scenario == "persistent"]
    assert sum(count for cell, count in plain if not cell.slowdown_percent) == sum(
        count for cell, count in plain if cell.slowdown_percent
    )
    seeds = [cell.seed(index) for cell, count in cells for index in range(count)]
    assert len(set(seeds)) == len(seeds)
