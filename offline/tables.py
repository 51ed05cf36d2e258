"""Tables from files: CSV (also compressed with gzip) and parquet, as columns that know where in the file they stood."""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offline.errors import RecordingError

Column = npt.NDArray[Any]

_PARQUET_MAGIC = b"PAR1"
_GZIP_MAGIC = b"\x1f\x8b"
_OTHERS = {
    b"PK\x03\x04": "a zip archive or a spreadsheet: save it as CSV, alone or compressed with gzip",
    b"BZh": "compressed with bzip2: decompress it, or compress it with gzip",
    b"\xfd7zXZ": "compressed with xz: decompress it, or compress it with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it, or compress it with gzip",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
}
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of a file, and where its rows stood in it.

    Attributes:
        path: The file.
        columns: By name; equally long, at least one row.
        lines: The line of each row in a text file; None where rows have no lines (parquet).
    """

    path: Path
    columns: dict[str, Column]
    lines: Column | None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, row: int) -> str:
        """Where a row is, for a person; rows count from 0."""
        return f"{self.path} row {row + 1}" if self.lines is None else f"{self.path} line {self.lines[row]}"

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
            return found
        values = np.empty(len(cells))
        for row, cell in enumerate(cells.tolist()):
            if cell in ("", None):
                if blank is None:
                    raise RecordingError(f"{self.place(row)}: {name} is empty")
                values[row] = blank
                continue
            try:
                values[row] = float(cell)
            except (TypeError, ValueError):
                raise RecordingError(f"{self.place(row)}: {name} is {cell!r}, not a number") from None
        return values


def read_table(path: Path, *, needed: tuple[str, ...], optional: tuple[str, ...]) -> Table:
    """The columns of a table that are wanted.

    Args:
        path: Parquet or CSV, told apart by content.
        needed: Columns that must be there.
        optional: Columns that are read where they are there.

    Raises:
        RecordingError: The file is neither, columns are missing, or a line does not fit its header.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(8)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error
    for other, what in _OTHERS.items():
        if magic.startswith(other):
            raise RecordingError(f"{path} is {what}")
    read = _read_parquet if magic.startswith(_PARQUET_MAGIC) else _read_csv
    table = read(path, lambda names: _wanted(path, names, needed, optional))
    if not len(table):
        raise RecordingError(f"{path} has a header but no rows")
    return table


def _wanted(path: Path, names: list[str], needed: tuple[str, ...], optional: tuple[str, ...]) -> list[str]:
    missing = [name for name in needed if name not in names]
    if missing:
        there = ", ".join(name[:40] for name in names[:20])
        lacks = f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has {there}"
        for separator, plural in _SEPARATORS.items():
            if len(names) == 1 and separator in names[0]:
                lacks = f"{path} separates its values by {plural}; save it with commas, and numbers with decimal points"
        raise RecordingError(f"{lacks}. Needed: {', '.join(needed)}. Used where there: {', '.join(optional)}")
    twice = [name for name in (*needed, *optional) if names.count(name) > 1]
    if twice:
        raise RecordingError(f"{path} has more than one column {twice[0]}; keep one of them")
    return [name for name in (*needed, *optional) if name in names]


def _read_parquet(path: Path, wanted: Callable[[list[str]], list[str]]) -> Table:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra: CSV needs none of it
    except ImportError as error:
        raise RecordingError(
            f"{path} is a parquet file, and pyarrow is not installed: pip install 'evenkeel[offline]', or save as CSV"
        ) from error
    try:
        names = wanted(parquet.read_schema(path).names)
        table = parquet.read_table(path, columns=names)
        columns = {name: np.asarray(table.column(name).combine_chunks().to_pylist()) for name in names}
    except (ArrowException, OSError) as error:
        raise RecordingError(f"{path} is a damaged parquet file: {error}") from error
    return Table(path=path, columns=columns, lines=None)


def _read_csv(path: Path, wanted: Callable[[list[str]], list[str]]) -> Table:
    rows = _csv_rows(path)
    _, header = next(rows, (0, []))
    if not header:
        raise RecordingError(f"{path} is empty")
    header = [name.strip() for name in header]
    names = wanted(header)
    places = [header.index(name) for name in names]
    cells: list[list[str]] = [[] for _ in names]
    lines: list[int] = []
    for line, row in rows:
        if len(row) != len(header):
            raise RecordingError(f"{path} line {line}: {len(row)} values for {len(header)} columns")
        lines.append(line)
        for column, place in zip(cells, places, strict=True):
            column.append(row[place].strip())
    columns = {name: np.array(column, dtype=np.str_) for name, column in zip(names, cells, strict=True)}
    return Table(path=path, columns=columns, lines=np.array(lines, dtype=np.int64))


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, with the lines on which they begin."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == _GZIP_MAGIC
    opened = gzip.open if zipped else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            line = 1
            for row in reader:
                if any(cell.strip() for cell in row):
                    yield line, row
                line = reader.line_num + 1
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RecordingError(f"{path} is neither parquet nor UTF-8 text: {error.reason} 0x{byte:02x}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RecordingError(f"{path} is damaged, or cut off, as a gzip file: {error}") from error
    except csv.Error as error:
        raise RecordingError(f"{path} line {line}: {error}; is it CSV?") from error
