"""Tables from files: CSV (also compressed with gzip) and parquet, as columns by name."""

import csv
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offline.errors import RecordingError

Column = npt.NDArray[Any]

_PARQUET_MAGIC = b"PAR1"
_GZIP_MAGIC = b"\x1f\x8b"


def read_table(path: Path, *, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Column]:
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
            magic = file.read(4)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from error
    if not magic:
        raise RecordingError(f"{path} is empty")
    read = _read_parquet if magic == _PARQUET_MAGIC else _read_csv
    columns = read(path, lambda names: _wanted(path, names, needed, optional))
    if not len(columns[needed[0]]):
        raise RecordingError(f"{path} has a header but no rows")
    return columns


def _wanted(path: Path, names: list[str], needed: tuple[str, ...], optional: tuple[str, ...]) -> list[str]:
    missing = [name for name in needed if name not in names]
    if missing:
        raise RecordingError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has {', '.join(names[:20])}. "
            f"Needed: {', '.join(needed)}. Used where there: {', '.join(optional)}"
        )
    return [name for name in (*needed, *optional) if name in names]


def _read_parquet(path: Path, wanted: Callable[[list[str]], list[str]]) -> dict[str, Column]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra: CSV needs none of it
    except ImportError as error:
        raise RecordingError(
            f"{path} is a parquet file, and pyarrow is not installed: pip install 'evenkeel[offline]', or save as CSV"
        ) from error
    try:
        names = wanted(parquet.read_schema(path).names)
        table = parquet.read_table(path, columns=names)
        return {name: np.asarray(table.column(name).combine_chunks().to_pylist()) for name in names}
    except (ArrowException, OSError) as error:
        raise RecordingError(f"{path} is a damaged parquet file: {error}") from error


def _read_csv(path: Path, wanted: Callable[[list[str]], list[str]]) -> dict[str, Column]:
    rows = _csv_rows(path)
    _, header = next(rows, (1, []))
    header = [name.strip().lstrip("\ufeff") for name in header]
    names = wanted(header)
    places = [header.index(name) for name in names]
    cells: list[list[str]] = [[] for _ in names]
    for line, row in rows:
        if len(row) != len(header):
            raise RecordingError(f"{path} line {line}: {len(row)} values for {len(header)} columns")
        for column, place in zip(cells, places, strict=True):
            column.append(row[place].strip())
    return {name: np.array(column, dtype=np.str_) for name, column in zip(names, cells, strict=True)}


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, with their line numbers."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == _GZIP_MAGIC
    opened = gzip.open if zipped else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError) as error:
        raise RecordingError(f"{path} is neither CSV nor parquet: {error}") from error


def numbers(path: Path, name: str, cells: Column, *, blank: float | None = None) -> npt.NDArray[np.float64]:
    """A column as numbers.

    Args:
        path: Named in errors.
        name: The column.
        cells: Its cells, text or numbers.
        blank: What an empty cell stands for; None where it may not be empty.

    Raises:
        RecordingError: A cell is no number; names the line.
    """
    if cells.dtype.kind in "iuf":
        found: npt.NDArray[np.float64] = cells.astype(np.float64)
        return found
    values = np.empty(len(cells))
    for row, cell in enumerate(cells.tolist()):
        if cell in ("", None) and blank is not None:
            values[row] = blank
            continue
        try:
            values[row] = float(cell)
        except (TypeError, ValueError):
            raise RecordingError(f"{path} line {row + 2}: {name} is {cell!r}, not a number") from None
    return values
