"""The benchmark's page says what its runs found, with the bounds that their number allows."""

import json
from pathlib import Path

import pytest

from benchmarks.detection.bars import bars
from benchmarks.detection.cells import Cell, grid
from benchmarks.detection.page import results_of, scores_of, table
from benchmarks.detection.score import at_least_percent, at_most


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
    text = bars(scores_of(path), [slow, healthy], slow.noise_percent)
    assert "5 % slow" in text
    assert "seen so far, n too small" in text
    assert "| false alarms per 1,000 iterations | < 0.01 | 0.333" in text
    lines(path, slow, 300, found=300)
    assert "| 100.00 % (at least 99.25); 2 | 400 victims | yes |" in bars(scores_of(path), [slow], slow.noise_percent)
    lines(path, slow, 50, found=0)
    assert "| 450 victims | no |" in bars(scores_of(path), [slow], slow.noise_percent)
    assert "| 4 x 2 x 2 | 5 | Evenkeel | 450 |" in table(results_of(path), [slow])


def test_half_of_all_traces_are_healthy_and_no_two_cells_share_a_seed() -> None:
    cells = grid(["4x2x2", "4x2x4"], 200)
    plain = [(cell, count) for cell, count in cells if cell.noise_percent < 1 and cell.scenario == "persistent"]
    assert sum(count for cell, count in plain if not cell.slowdown_percent) == sum(
        count for cell, count in plain if cell.slowdown_percent
    )
    seeds = [cell.seed(index) for cell, count in cells for index in range(count)]
    assert len(set(seeds)) == len(seeds)
