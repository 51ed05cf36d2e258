"""Tables from files: CSV (also compressed with gzip) and parquet, as columns that know where in the file they stood."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from evenkeel.offline.errors import RecordingError
from evenkeel.offline.tables.csv_columns import Column, read_csv

_PARQUET_MAGIC = b"PAR1"
_EMPTY = frozenset({"", "null", "none", "n/a", "na"})
"""What stands in a table where there is no value; "nan" is a number."""

_ONE_OF = ("job", "job_id", "run", "run_id")
"""Columns that say whose a row is: a recording is of one."""

_OTHERS = {
    b"PK\x03\x04": "a zip archive or a spreadsheet: save it as CSV, alone or compressed with gzip",
    b"BZh": "compressed with bzip2: decompress it, or compress it with gzip",
    b"\xfd7zXZ": "compressed with xz: decompress it, or compress it with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it, or compress it with gzip",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of a file, and where its rows stood in it.

    Attributes:
        path: The file.
        columns: By name; equally long, at least one row. Numbers of a text file are numbers where all cells are.
        blanks: Which cells of a column of numbers were empty; a column that is not here has none.
        lines: The line of each row in a text file; None where rows have no lines (parquet).
        notes: What was left out.
    """

    path: Path
    columns: dict[str, Column]
    lines: Column | None
    blanks: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, row: int) -> str:
        """Where a row is, for a person; rows count from 0."""
        return f"{self.path} row {row + 1}" if self.lines is None else f"{self.path} line {self.lines[row]}"

    def select(self, rows: npt.NDArray[np.int64]) -> "Table":
        """Some of the rows, in this order."""
        columns, blanks = ({name: cells[rows] for name, cells in each.items()} for each in (self.columns, self.blanks))
        lines = None if self.lines is None else self.lines[rows]
        return replace(self, columns=columns, blanks=blanks, lines=lines)

    def numbers(self, name: str, *, blank: float | None = None) -> npt.NDArray[np.float64]:
        """A column as numbers.

        Args:
            name: The column.
            blank: What an empty cell stands for; None where it may not be empty.

        Raises:
            RecordingError: A cell is no number; names its place.
        """
        cells = self.columns[name]
        if cells.dtype.kind in "iuf":
            found: npt.NDArray[np.float64] = cells.astype(np.float64)
            empty = np.flatnonzero(self.blanks.get(name, np.zeros(0)))
            if len(empty) and blank is None:
                raise RecordingError(f"{self.place(int(empty[0]))}: {name} is empty")
            found[empty] = blank
            return found
        values = np.empty(len(cells))
        for row, cell in enumerate(cells.tolist()):
            if cell is None or str(cell).lower() in _EMPTY:
                if blank is None:
                    raise RecordingError(f"{self.place(row)}: {name} is empty")
                values[row] = blank
                continue
            try:
                values[row] = float(cell)
            except (TypeError, ValueError):
                hint = "; write decimal points" if "," in str(cell) else ""
                raise RecordingError(f"{self.place(row)}: {name} is {cell!r}, not a number{hint}") from None
        return values


def read_table(path: Path, *, needed: tuple[str, ...], optional: tuple[str, ...]) -> Table:
    """The columns of a table that are wanted.

    Args:
        path: Parquet or CSV, told apart by content.
        needed: Columns that must be there.
        optional: Columns that are read where they are there.

    Raises:
        RecordingError: The file is neither, columns are missing, a line does not fit its header, or the rows are those
            of several jobs.
    """
    try:
        with path.open("rb") as raw:
            found = _read(path, raw, lambda names: _wanted(path, names, needed, optional))
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error
    for name in _ONE_OF:
        cells = found.columns.pop(name, np.zeros(0))
        values = np.unique(cells.astype(np.str_) if cells.dtype == np.object_ else cells).tolist()
        whose = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        if len(whose) > 1:
            several = f"{len(whose)} values in the column {name} ({', '.join(whose[:3])}{', ...' * (len(whose) > 3)})"
            raise RecordingError(f"{path} has {several}: keep the rows of one, a file for each")
    return found


def _read(path: Path, raw: io.BufferedReader, wanted: Callable[[list[str]], list[str]]) -> Table:
    # A pipe can be read only once: what the file is, is told from what lies ahead.
    magic = raw.peek(8)[:8]
    for other, what in _OTHERS.items():
        if magic.startswith(other):
            raise RecordingError(f"{path} is {what}")
    table = (_read_parquet if magic.startswith(_PARQUET_MAGIC) else _read_csv)(path, raw, wanted)
    if not len(table):
        raise RecordingError(f"{path} has a header but no rows")
    return table


def _wanted(path: Path, names: list[str], needed: tuple[str, ...], optional: tuple[str, ...]) -> list[str]:
    missing = [name for name in needed if name not in names]
    if missing:
        there = ", ".join(name[:40] for name in names[:20]) or "none"
        lacks = f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has {there}"
        if any(map(_is_number, (*names[:1], *names[-1:]))):
            lacks = f"{path} begins with {there}: its first line must name the columns"
        elif there.startswith(("{", "[")):
            lacks = f"{path} looks like JSON: save it as CSV"
        raise RecordingError(f"{lacks}. Needed: {', '.join(needed)}. Used where there: {', '.join(optional)}")
    twice = [name for name in (*needed, *optional) if names.count(name) > 1]
    if twice:
        raise RecordingError(f"{path} has more than one column {twice[0]}; keep one of them")
    return [name for name in (*needed, *optional, *_ONE_OF) if names.count(name) == 1]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path, raw: io.BufferedReader, wanted: Callable[[list[str]], list[str]]) -> Table:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra: CSV needs none of it
    except ImportError as error:
        raise RecordingError(
            f"{path} is a parquet file, and pyarrow is not installed: pip install 'evenkeel[offline]', or save as CSV"
        ) from error
    try:
        file = parquet.ParquetFile(raw if raw.seekable() else io.BytesIO(raw.read()))
        names = wanted(file.schema_arrow.names)
        table = file.read(columns=names)
        columns = {name: _parquet_cells(table.column(name)) for name in names}
    except (ArrowException, OSError) as error:
        raise RecordingError(f"{path} is a damaged parquet file: {error}") from error
    return Table(path=path, columns=columns, lines=None)


def _parquet_cells(column: Any) -> Column:
    from pyarrow import types  # noqa: PLC0415 - as above

    # Numbers without holes need no Python object each.
    if column.null_count == 0 and (types.is_integer(column.type) or types.is_floating(column.type)):
        return cast(Column, column.to_numpy())
    if types.is_nested(column.type):  # lists of equal lengths would become columns of their own
        return np.fromiter(column.to_pylist(), dtype=np.object_)
    return np.asarray(column.to_pylist())


def _read_csv(path: Path, raw: io.BufferedReader, wanted: Callable[[list[str]], list[str]]) -> Table:
    found = read_csv(path, raw, wanted)
    notes = (f"the file ends in the middle of line {found.cut_at}: left out",) if found.cut_at else ()
    return Table(path=path, columns=found.columns, lines=found.lines, blanks=found.blanks, notes=notes)
