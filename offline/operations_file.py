"""Recordings of operations (``--format ops``): a row for each operation of each worker, CSV or parquet."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attribution import OperationError, Operations
from attribution.clocks import aligned
from attribution.operations import COMPUTE, OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from attribution.torn_steps import torn_steps
from offline.csv_columns import Column
from offline.errors import RecordingError
from offline.step_seconds import step_seconds
from offline.tables import Table, read_table

_LEAST_FILLED = 0.01
_LONGEST_USUAL_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperations:
    """A recording.

    Attributes:
        operations: Whole steps, on one clock.
        notes: What was left out or put right.
    """

    operations: Operations
    notes: tuple[str, ...]


def read_operations(path: Path) -> RecordedOperations:
    """The operations in a file; columns as in :mod:`attribution.operations`.

    Raises:
        RecordingError: The file or what is in it cannot be used.
    """
    table = read_table(path, needed=REQUIRED_COLUMNS, optional=OPTIONAL_COLUMNS)
    columns = {name: cells if name == "optype" else table.numbers(name) for name, cells in table.columns.items()}
    try:
        operations = Operations.from_columns(columns)
    except OperationError as error:
        place = f"{path}" if error.row is None else table.place(error.row)
        raise RecordingError(f"{place}: {error.problem}") from error
    _check_repeats(table, columns)
    _check_overlap(path, operations)
    _check_filled(path, operations)
    notes = _doubts(operations)
    torn = torn_steps(operations)
    if torn:
        operations = operations.select(~np.isin(operations.step, torn))
        which = " and ".join(str(step) for step in torn)
        notes.append(f"step{'s' * (len(torn) > 1)} {which} left out: operations are missing that other steps have")
    operations, apart = aligned(operations)
    if apart:
        notes.append(f"clocks of workers differed by up to {apart:.4g} s: put right by the transfers between them")
    return RecordedOperations(operations=operations, notes=tuple(notes))


def _check_repeats(table: Table, columns: dict[str, Column]) -> None:
    lasting = np.flatnonzero(columns["duration"] > 0)
    _, kind = np.unique(columns["optype"][lasting], return_inverse=True)
    names = ("step", "dp_rank", "stage", "start_ts", "duration")
    keys = np.stack([kind.ravel().astype(np.float64), *(columns[name][lasting] for name in names)])
    order = np.lexsort(keys)
    same = (keys[:, order[1:]] == keys[:, order[:-1]]).all(axis=0)
    again, before = order[1:][same], order[:-1][same]
    if len(again):
        first = int(again.argmin())
        row, earlier = int(lasting[again[first]]), int(lasting[before[first]])
        repeated = table.place(earlier).removeprefix(f"{table.path} ")
        raise RecordingError(f"{table.place(row)} repeats {repeated}: keep each operation once")


def _check_overlap(path: Path, operations: Operations) -> None:
    """One worker computes one thing at a time; where most overlap, times are in different units."""
    rows = np.flatnonzero(np.isin(operations.optype, list(COMPUTE)))
    keys = (operations.start_seconds[rows], operations.stage[rows], operations.dp_rank[rows], operations.step[rows])
    rows = rows[np.lexsort(keys)]
    this, following = rows[:-1], rows[1:]
    places = np.stack([operations.step, operations.dp_rank, operations.stage])
    same = (places[:, this] == places[:, following]).all(axis=0)
    over = operations.end_seconds[this] - operations.start_seconds[following]
    overlapping = same & (over > 0.5 * operations.duration_seconds[this])
    if same.any() and 2 * overlapping.sum() > same.sum():
        raise RecordingError(
            f"{path}: most computations begin before the one before them on the same worker is half done; are start_ts "
            "and duration both in seconds, and workers told apart by dp_rank and stage?"
        )


def _check_filled(path: Path, operations: Operations) -> None:
    """A worker is nearly always busy or waiting; where hardly any is, times are in different units."""
    steps, lengths = step_seconds(operations)
    workers = len(np.unique(operations.rank))
    place = np.searchsorted(steps, operations.step)
    busy = np.bincount(place, weights=operations.duration_seconds) / workers
    if float(np.median(busy / np.maximum(lengths, 1e-12))) < _LEAST_FILLED:
        raise RecordingError(
            f"{path}: the operations of a worker last less than {_LEAST_FILLED:.0%} of the step; are start_ts and "
            "duration both in seconds?"
        )


def _doubts(operations: Operations) -> list[str]:
    """What to ask of steps that take unbelievably long."""
    usual = float(np.median(step_seconds(operations)[1]))
    if usual < _LONGEST_USUAL_SECONDS:
        return []
    return [f"a step usually takes {usual:g} s: are these milliseconds, or less? Shares do not depend on the unit"]
