"""The grid of faults, and what a case counts as lost."""

from collections import Counter

from benchmarks.faults.__main__ import table_of
from benchmarks.faults.cells import Cell, Fault, cases, grid
from benchmarks.faults.live import Case, Outcome


def test_each_round_has_every_cell_once_and_the_same_seed_the_same_cases() -> None:
    played = list(cases(3, seed=4))
    assert Counter(cell for cell, _, _ in played) == dict.fromkeys(grid(), 3)
    assert len(set(map(str, grid()))) == len(grid()), "no two read alike"
    assert played == list(cases(3, seed=4)) != list(cases(3, seed=5))
    assert {cell.service for cell, _, _ in cases(1, 0, only="scheduler")} == {"scheduler"}


def test_a_case_that_failed_counts_as_one_and_takes_no_time() -> None:
    cell = Cell(ranks=(1,), fault=Fault.KILL)
    outcome = Outcome(
        cases=tuple(Case(cell=cell, began_at=0.0, ended_at=1.0, problem=problem) for problem in ("", "", "stuck")),
        lost_seconds=(0.25, 0.75, 9.0),
        healthy_seconds=1.0,
        loss_difference=0.0,
        samples_lost=0,
        samples_repeated=0,
    )
    assert table_of(outcome) == [
        {"cell": "kill rank 1", "cases": 3, "failed": 1, "p50_seconds": 0.5, "max_seconds": 0.75}
    ]
