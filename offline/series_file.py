"""Recordings of iteration times (``--format series``): a row an iteration, CSV or parquet.

Columns: ``iteration`` and ``seconds``; where they are there ``tokens`` and ``sum_of_squares`` (the workload), and
``mark``: anything but an empty cell, ``0`` or ``false`` says that a planned pause fell into the iteration.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offline.errors import RecordingError
from offline.tables import Column, numbers, read_table
from services.detector.domain.series import Iteration

NEEDED = ("iteration", "seconds")
OPTIONAL = ("tokens", "sum_of_squares", "mark")

_NO_MARK = frozenset({"", "0", "0.0", "false", "no", "none", "nan"})


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
    cells = read_table(path, needed=NEEDED, optional=OPTIONAL)
    iterations = numbers(path, "iteration", cells["iteration"])
    seconds = numbers(path, "seconds", cells["seconds"])
    _check(path, iterations, seconds)
    tokens = _workload(path, "tokens", cells)
    squares = _workload(path, "sum_of_squares", cells)
    judged, tokens, squares, notes = _comparable(tokens, squares)
    marks = [
        str(mark).strip().lower() not in _NO_MARK for mark in cells.get("mark", np.full(len(seconds), "")).tolist()
    ]
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
    return Series(iterations=found, notes=notes)


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


def _check(path: Path, iterations: Column, seconds: Column) -> None:
    if not np.isfinite(iterations).all() or (iterations != np.floor(iterations)).any():
        row = int(np.flatnonzero(~np.isfinite(iterations) | (iterations != np.floor(iterations)))[0])
        raise RecordingError(f"{path} line {row + 2}: iteration is {iterations[row]}, not a whole number")
    back = np.flatnonzero(np.diff(iterations) <= 0)
    if len(back):
        row = int(back[0]) + 1
        raise RecordingError(
            f"{path} line {row + 2}: iteration {iterations[row]:.0f} comes after {iterations[row - 1]:.0f}; sort the "
            "file by iteration and keep each one once (one file a run)"
        )
    wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if len(wrong):
        row = int(wrong[0])
        raise RecordingError(
            f"{path} line {row + 2}: seconds is {seconds[row]}; it must be above 0 (leave iterations that were not "
            "measured out)"
        )


def _workload(path: Path, name: str, cells: dict[str, Column]) -> Column:
    """The workload; an empty cell says that it is not known."""
    if name not in cells:
        return np.full(len(cells["seconds"]), np.nan)
    found = numbers(path, name, cells[name], blank=np.nan)
    wrong = np.flatnonzero(found < 0)
    if len(wrong):
        raise RecordingError(f"{path} line {int(wrong[0]) + 2}: {name} is {found[wrong[0]]}; it must not be negative")
    return found
