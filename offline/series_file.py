"""Recordings of iteration times (``--format series``): a row an iteration, CSV or parquet.

Columns: ``iteration`` and ``seconds``; where they are there ``tokens`` and ``sum_of_squares`` (the workload), and
``mark``: anything but an empty cell, ``0`` or ``false`` says that a planned pause fell into the iteration.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenkeel.offline.errors import RecordingError
from evenkeel.offline.series.finding import Iteration
from evenkeel.offline.tables.csv_columns import Column
from evenkeel.offline.tables.tables import Table, read_table

NEEDED = ("iteration", "seconds")
OPTIONAL = ("tokens", "sum_of_squares", "mark")

_NO_MARK = frozenset({"", "0", "0.0", "false", "no", "none", "nan", "null", "n/a", "na", "-"})
_LARGEST_WHOLE = 2.0**53
_LARGEST_WORKLOAD = 1e24
_LONGEST_USUAL_SECONDS = 600.0
_FEWEST_OF_A_CLOCK = 30
_ROWS_PER_RESTART = 20
"""A file that goes back more often than once in so many rows is not in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A recording.

    Attributes:
        iterations: Those that can be judged, and the planned pauses.
        notes: What was left out, and why.
    """

    iterations: tuple[Iteration, ...]
    notes: tuple[str, ...]


def read_series(path: Path) -> Series:
    """The iterations in a file.

    An iteration without its workload cannot be compared with others that have theirs: it is left out. Where most lack
    it, none is used.

    Raises:
        RecordingError: The file cannot be used; names the line.
    """
    table, order = _in_order(read_table(path, needed=NEEDED, optional=OPTIONAL))
    iterations, seconds = table.numbers("iteration"), table.numbers("seconds")
    _check_seconds(table, seconds)
    restarts = order + _restarts(table, iterations)
    tokens, squares = _workload(table, "tokens"), _workload(table, "sum_of_squares")
    judged, tokens, squares, notes = _comparable(tokens, squares)
    marks = [str(mark).strip().lower() not in _NO_MARK for mark in _cells(table, "mark").tolist()]
    rows = zip(iterations, seconds, tokens, squares, marks, judged, strict=True)
    found = tuple(
        Iteration(
            iteration=int(iteration),
            seconds=float(taken),
            tokens=None if np.isnan(num_tokens) else float(num_tokens),
            sum_of_squares=None if np.isnan(square) else float(square),
            planned=planned,
        )
        for iteration, taken, num_tokens, square, planned, kept in rows
        if kept or planned
    )
    _check_clock(table, seconds)
    return Series(iterations=found, notes=table.notes + restarts + notes + _doubts(seconds))


def _in_order(table: Table) -> tuple[Table, tuple[str, ...]]:
    """The rows by iteration where they are in no order and each is there once, so that no restart can be meant."""
    iterations = table.numbers("iteration")
    back = np.count_nonzero(np.diff(iterations) < 0)
    if back * _ROWS_PER_RESTART <= len(iterations) or len(np.unique(iterations)) < len(iterations):
        return table, ()
    return table.select(np.argsort(iterations)), ("rows are in no order: sorted by iteration",)


def _check_clock(table: Table, seconds: Column) -> None:
    """Lengths go up and down; what only ever rises is a clock."""
    if len(seconds) >= _FEWEST_OF_A_CLOCK and (np.diff(seconds) > 0).all():
        raise RecordingError(
            f"{table.path}: seconds only ever rises, from {seconds[0]:g} to {seconds[-1]:g}, as a clock does; it must "
            "be how long each iteration took"
        )


def _doubts(seconds: Column) -> tuple[str, ...]:
    """What to ask of iterations that take unbelievably long."""
    usual = float(np.median(seconds))
    if usual < _LONGEST_USUAL_SECONDS:
        return ()
    return (
        f"an iteration usually takes {usual:g} s: are these milliseconds, or less? Verdicts do not depend on the unit",
    )


def _comparable(tokens: Column, squares: Column) -> tuple[Column, Column, Column, tuple[str, ...]]:
    """Which iterations to judge, their workload as far as it is used, and what to say of the others."""
    notes = []
    with_tokens, with_squares = np.isfinite(tokens), np.isfinite(squares)
    judged = np.ones(len(tokens), dtype=np.bool_)
    if not with_tokens.any() and with_squares.any():
        notes.append("sum_of_squares without tokens is not used")
    for name, known in (("tokens", with_tokens), ("sum_of_squares", with_squares)):
        if known.any() and not 2 * known.sum() > len(known):
            notes.append(f"{name} is empty in {len(known) - known.sum()} of {len(known)} iterations: it is not used")
            known[:] = False
    with_squares &= with_tokens.any()
    for known in (with_tokens, with_squares):
        if known.any():
            judged &= known
    if not judged.all():
        notes.append(f"{int((~judged).sum())} iterations whose workload is not known are left out")
    nothing = np.full(len(tokens), np.nan)
    tokens = tokens if with_tokens.any() else nothing
    squares = squares if with_squares.any() else nothing
    return judged, tokens, squares, tuple(notes)


def _restarts(table: Table, iterations: Column) -> tuple[str, ...]:
    """What to say of places where a run went back to a checkpoint.

    Raises:
        RecordingError: An iteration is no whole number, is there twice in a row, or they are in no order.
    """
    wrong = np.flatnonzero(~(np.abs(iterations) <= _LARGEST_WHOLE) | (iterations != np.floor(iterations)))
    if len(wrong):
        row = int(wrong[0])
        raise RecordingError(f"{table.place(row)}: iteration is {iterations[row]}, not a whole number")
    steps = np.diff(iterations)
    back = np.flatnonzero(steps <= 0) + 1
    if not len(back):
        return ()
    if (steps == 0).any() or len(back) * _ROWS_PER_RESTART > len(iterations):
        row = int(np.flatnonzero(steps == 0)[0]) + 1 if (steps == 0).any() else int(back[0])
        raise RecordingError(
            f"{table.place(row)}: iteration {iterations[row]:.0f} comes after {iterations[row - 1]:.0f}; sort the "
            "file by iteration and keep each one once (one file a run)"
        )
    first = int(back[0])
    times = f"{len(back)} time{'s' * (len(back) > 1)}"
    where = f"first from {iterations[first - 1]:.0f} to {iterations[first]:.0f}, {table.place(first)}"
    return (f"the run went back to an earlier iteration {times}, {where}: judged in the order of the file",)


def _check_seconds(table: Table, seconds: Column) -> None:
    wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if len(wrong):
        row = int(wrong[0])
        raise RecordingError(
            f"{table.place(row)}: seconds is {seconds[row]}; it must be above 0 (leave iterations that were not "
            "measured out)"
        )


def _workload(table: Table, name: str) -> Column:
    """The workload; an empty cell says that it is not known."""
    if name not in table.columns:
        return np.full(len(table), np.nan)
    found = table.numbers(name, blank=np.nan)
    wrong = np.flatnonzero((found < 0) | (found > _LARGEST_WORKLOAD))
    if len(wrong):
        row = int(wrong[0])
        limits = f"it must not be negative, nor above {_LARGEST_WORKLOAD:g} (leave it empty where it is not known)"
        raise RecordingError(f"{table.place(row)}: {name} is {found[row]}; {limits}")
    return found


def _cells(table: Table, name: str) -> Column:
    return table.columns.get(name, np.full(len(table), ""))
