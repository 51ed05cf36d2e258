"""Reading a recording of iterations: CSV, also compressed with gzip, or parquet, as tables of iterations by ranks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.tables.tables import Table, read_table

NEEDED = ("iteration", "rank", "compute_seconds")
SECONDS = ("wall_seconds", "wait_seconds", "cpu_seconds", "queue_seconds", "loop_wall_seconds", "throttled_seconds")
OPTIONAL = (*SECONDS, "tokens", "mark")

_NO_MARK = frozenset({"", "0", "0.0", "false", "no", "none", "nan", "null", "n/a", "na", "-"})
_LARGEST_WHOLE = 2.0**53
_LARGEST_RANK = 1 << 20
_MOST_CELLS = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedIterations:
    """A recording.

    Attributes:
        iterations: Numbers, ascending.
        ranks: Numbers, ascending.
        columns: By name, one row an iteration, one column a rank, NaN where nothing was recorded; those of seconds, and
            tokens where they are there.
        planned: Iterations with a planned pause, by what any rank says.
        notes: What was left out.
    """

    iterations: Ints
    ranks: Ints
    columns: dict[str, Floats]
    planned: Bools
    notes: tuple[str, ...]


def read_iterations(path: Path) -> RecordedIterations:
    """The iterations in a file; its rows may be in any order.

    Raises:
        RecordingError: The file cannot be used; names the line.
    """
    table = read_table(path, needed=NEEDED, optional=OPTIONAL)
    numbers, ranks = _whole(table, "iteration", _LARGEST_WHOLE), _whole(table, "rank", _LARGEST_RANK)
    iterations, at_iteration = np.unique(numbers, return_inverse=True)
    known_ranks, at_rank = np.unique(ranks, return_inverse=True)
    shape = len(iterations), len(known_ranks)
    if shape[0] * shape[1] > _MOST_CELLS:
        raise RecordingError(f"{path} names {shape[0]} iterations and {shape[1]} ranks: too many to be one job")
    cells = at_iteration * shape[1] + at_rank
    _check_once(table, cells, numbers, ranks)
    columns = {}
    for name in ("compute_seconds", *SECONDS, "tokens"):
        if name in table.columns:
            values = np.full(shape[0] * shape[1], np.nan)
            values[cells] = _not_negative(table, name)
            columns[name] = values.reshape(shape)
    if not np.isfinite(columns["compute_seconds"]).any():
        raise RecordingError(f"{path} has no compute_seconds above 0")
    planned = np.zeros(shape[0], dtype=np.bool_)
    planned[at_iteration[_marked(table)]] = True
    return RecordedIterations(
        iterations=iterations, ranks=known_ranks, columns=columns, planned=planned, notes=table.notes
    )


def _whole(table: Table, name: str, largest: float) -> Ints:
    values = table.numbers(name)
    wrong = np.flatnonzero(~((values >= 0) & (values <= largest)) | (values != np.floor(values)))
    if len(wrong):
        row = int(wrong[0])
        raise RecordingError(f"{table.place(row)}: {name} is {values[row]:g}, not a whole number from 0 on")
    return values.astype(np.int64)


def _check_once(table: Table, cells: Ints, iterations: Ints, ranks: Ints) -> None:
    order = np.argsort(cells, kind="stable")
    twice = np.flatnonzero(np.diff(cells[order]) == 0)
    if len(twice):
        row = int(order[twice + 1].min())
        raise RecordingError(
            f"{table.place(row)}: iteration {iterations[row]} of rank {ranks[row]} is there already; keep one row for "
            "each, and of a job that went back to a checkpoint a file for each run"
        )


def _not_negative(table: Table, name: str) -> Floats:
    values = table.numbers(name, blank=np.nan)
    wrong = np.flatnonzero((values < 0) | np.isinf(values))
    if len(wrong):
        row = int(wrong[0])
        raise RecordingError(f"{table.place(row)}: {name} is {values[row]:g}; it must be 0 or more, or empty")
    return values


def _marked(table: Table) -> Bools:
    if "mark" not in table.columns:
        return np.zeros(len(table), dtype=np.bool_)
    cells, blanks = table.columns["mark"], table.blanks.get("mark")
    marked = np.array([str(cell).strip().lower() not in _NO_MARK for cell in cells.tolist()], dtype=np.bool_)
    return marked if blanks is None else marked & ~blanks
