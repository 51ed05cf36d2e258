"""Recordings of operations (``--format ops``): a row for each operation of each worker, CSV or parquet."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evenkeel.attribution import OperationError, Operations
from evenkeel.attribution.operations import COMPUTE, OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from evenkeel.attribution.recording.clocks import aligned
from evenkeel.attribution.recording.torn_steps import torn_steps
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.operations.repeated_steps import earlier_runs
from evenkeel.offline.operations.step_seconds import step_seconds
from evenkeel.offline.tables.csv_columns import Column
from evenkeel.offline.tables.tables import Table, read_table
from evenkeel.offline.tables.time_units import unit_of

_LEAST_FILLED = 0.01


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
    """The operations in a file; columns as in :mod:`evenkeel.attribution.operations`.

    Raises:
        RecordingError: The file or what is in it cannot be used.
    """
    table = read_table(path, needed=REQUIRED_COLUMNS, optional=OPTIONAL_COLUMNS)
    columns = {name: cells if name == "optype" else _numbers(table, name) for name, cells in table.columns.items()}
    operations = _operations(table, columns)
    notes = list(table.notes)
    again = _repeats(table, columns)
    if len(again):
        kept = np.ones(len(table), dtype=np.bool_)
        kept[again] = False
        columns = {name: cells[kept] for name, cells in columns.items()}
        operations = _operations(table, columns)
        notes.append(f"{len(again)} rows repeat others, the first {table.place(int(again.min()))}: taken once")
    if "rank" in columns and (shared := _shared_rank(operations)):
        columns.pop("rank")
        operations = _operations(table, columns)
        notes.append(f"{shared}: the column is not used, workers are numbered by dp_rank and stage")
    earlier, repeated = earlier_runs(columns)
    if repeated:
        columns = {name: cells[~earlier] for name, cells in columns.items()}
        operations = _operations(table, columns)
        times = f"{len(repeated)} step{'s' * (len(repeated) > 1)}, the first step {repeated[0]}"
        notes.append(f"{times}: run again, as after a restart; the last run of each is taken")
    _check_overlap(path, operations)
    _check_filled(path, operations)
    operations, of_units = _in_seconds(operations)
    notes += of_units
    torn = torn_steps(operations)
    if torn:
        operations = operations.select(~np.isin(operations.step, torn))
        which = " and ".join(str(step) for step in torn)
        notes.append(f"step{'s' * (len(torn) > 1)} {which} left out: operations are missing that other steps have")
    operations, apart = aligned(operations)
    if apart:
        notes.append(f"clocks of workers differed by up to {apart:.4g} s: put right by the transfers between them")
    return RecordedOperations(operations=operations, notes=tuple(notes))


def _numbers(table: Table, name: str) -> Column:
    if name != "mb_id":
        return table.numbers(name)
    # Empty where there is none, as data frames write it.
    found = table.numbers(name, blank=-1.0)
    return np.where(np.isnan(found), -1.0, found)


def _operations(table: Table, columns: dict[str, Column]) -> Operations:
    try:
        return Operations.from_columns(columns)
    except OperationError as error:
        place = f"{table.path}" if error.row is None else table.place(error.row)
        raise RecordingError(f"{place}: {error.problem}") from error


def _repeats(table: Table, columns: dict[str, Column]) -> npt.NDArray[np.int64]:
    """Rows that are there before, the same in all columns.

    Raises:
        RecordingError: Rows are the same operation by time and place, but differ in another column.
    """
    _, kind = np.unique(columns["optype"], return_inverse=True)
    numbers = {name: cells for name, cells in columns.items() if name != "optype"}
    first = ("start_ts", "duration", "step", "dp_rank", "stage")
    keys = np.stack([*(numbers.pop(name) for name in first), kind.ravel().astype(np.float64)])
    order = np.lexsort(keys)  # stable: what is later in the file comes later
    same = (keys[:, order[1:]] == keys[:, order[:-1]]).all(axis=0)
    again, before = order[1:][same], order[:-1][same]
    alike = np.ones(len(again), dtype=np.bool_)
    for cells in numbers.values():
        alike &= cells[again] == cells[before]
    # What takes no time may well come twice.
    wrong = np.flatnonzero(~alike & (columns["duration"][again] > 0))
    if len(wrong):
        worst = int(wrong[again[wrong].argmin()])
        repeated = table.place(int(before[worst])).removeprefix(f"{table.path} ")
        raise RecordingError(
            f"{table.place(int(again[worst]))} repeats {repeated}, but for its number: keep each operation once (or is "
            "start_ts too coarse?)"
        )
    found: npt.NDArray[np.int64] = again[alike]
    return found


def _shared_rank(operations: Operations) -> str:
    """What to say of a rank that several workers have; empty where each has its own."""
    workers, first = np.unique(np.stack([operations.dp_rank, operations.stage]), axis=1, return_index=True)
    ranks, count = np.unique(operations.rank[first], return_counts=True)
    if workers.shape[1] == len(ranks):
        return ""
    rank = int(ranks[count > 1][0])
    return f"rank {rank} stands for {int(count[count > 1][0])} workers"


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
            "duration both in seconds, and numbers of steps not those of several runs?"
        )


def _in_seconds(operations: Operations) -> tuple[Operations, list[str]]:
    """The operations on a clock in seconds, and what to say where it was another one."""
    unit, seconds = unit_of(operations)
    if seconds == 1.0:
        return operations, []
    first = float(operations.start_seconds.min())
    found = replace(
        operations,
        start_seconds=seconds * (operations.start_seconds - first),
        duration_seconds=seconds * operations.duration_seconds,
    )
    usual = float(np.median(step_seconds(found)[1]))
    return found, [f"start_ts and duration are taken for {unit}: a step usually takes {usual:.3g} s"]
