"""CSV files of any length as columns: read once from front to end, so also from a pipe, and kept as numbers."""

import csv
import gzip
import io
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from evenkeel.offline.errors import RecordingError

Column = npt.NDArray[Any]

_GZIP_MAGIC = b"\x1f\x8b"
_SEPARATORS = ",;\t|"
_ROWS_AT_ONCE = 1 << 14
"""Rows that are turned into numbers together: cells as Python's strings take ten times the room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvColumns:
    """Columns of a CSV file.

    Attributes:
        columns: By name: numbers where all cells are numbers or empty, else text.
        blanks: Which cells of a column of numbers were empty.
        lines: On which line each row began, from 1.
        cut_at: The last line, where the file ends within it and it was left out; 0 where it is whole.
    """

    columns: dict[str, Column]
    blanks: dict[str, npt.NDArray[np.bool_]]
    lines: Column
    cut_at: int = 0


def read_csv(path: Path, raw: io.BufferedReader, wanted: Callable[[list[str]], list[str]]) -> CsvColumns:
    """Reads to the end of the file, which may be a pipe.

    Args:
        path: What to call the file.
        raw: The file, perhaps compressed with gzip.
        wanted: Which columns, given all names.

    Raises:
        RecordingError: It is no CSV, or a line does not fit its header.
    """
    ending = _Ending()
    rows = _csv_rows(path, raw, ending)
    _, header = next(rows, (0, []))
    if not header:
        raise RecordingError(f"{path} is empty")
    header = [name.strip() for name in header]
    names = wanted(header)
    places = [header.index(name) for name in names]
    parts: list[list[_Numbers | list[str]]] = [[] for _ in names]
    lines, cut_at = array("q"), 0
    while chunk := list(islice(rows, _ROWS_AT_ONCE)):
        if len(chunk) < _ROWS_AT_ONCE and len(chunk[-1][1]) < len(header) and not ending.is_whole:
            cut_at = chunk.pop()[0]
        for line, row in chunk:
            if len(row) != len(header):
                raise RecordingError(f"{path} line {line}: {len(row)} values for {len(header)} columns")
            lines.append(line)
        for part, place in zip(parts, places, strict=True):
            part.append(_numbers_if_all_are([row[place].strip() for _, row in chunk]))
    columns, blanks = {}, {}
    for name, part in zip(names, parts, strict=True):
        numbers = [each for each in part if isinstance(each, _Numbers)]
        if len(numbers) == len(part):
            columns[name] = np.concatenate([each.values for each in numbers]) if part else np.zeros(0)
            blanks[name] = np.concatenate([each.blank for each in numbers]) if part else np.zeros(0, dtype=np.bool_)
        else:
            columns[name] = np.array([cell for each in part for cell in each], dtype=np.str_)
    return CsvColumns(columns=columns, blanks=blanks, lines=np.array(lines, dtype=np.int64), cut_at=cut_at)


class _Ending:
    """Lines that pass by.

    Attributes:
        is_whole: The newest one ended as lines do.
    """

    def __init__(self) -> None:
        self.is_whole = True

    def watch(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines."""
        for line in lines:
            self.is_whole = line.endswith(("\n", "\r"))
            yield line


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Some cells of a column, not a number where they are empty."""

    values: npt.NDArray[np.float64]
    blank: npt.NDArray[np.bool_]

    def __iter__(self) -> Iterator[str]:
        """The cells as text."""
        for value, blank in zip(self.values.tolist(), self.blank.tolist(), strict=True):
            yield "" if blank else repr(value)


def _numbers_if_all_are(cells: list[str]) -> _Numbers | list[str]:
    blank = np.array([not cell for cell in cells], dtype=np.bool_)
    try:
        values = np.array([cell or "nan" for cell in cells] if blank.any() else cells, dtype=np.float64)
    except ValueError:
        # The same few words again and again: one object each.
        return [sys.intern(cell) for cell in cells]
    return _Numbers(values, blank)


def _csv_rows(path: Path, raw: io.BufferedReader, ending: _Ending) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, with the lines on which they begin."""
    zipped = raw.peek(2)[:2] == _GZIP_MAGIC
    content = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
    line = 1
    try:
        with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as file:
            ahead = []
            for text in file:
                ahead.append(text)
                if text.strip():
                    break
            reader = csv.reader(
                chain(ahead, ending.watch(file)), delimiter=_separator("".join(ahead)), skipinitialspace=True
            )
            for row in reader:
                if any(cell.strip() for cell in row):
                    yield line, row
                line = reader.line_num + 1
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        where = f"{error.reason} 0x{byte:02x} on line {line} or later"
        raise RecordingError(f"{path} is neither parquet nor UTF-8 text: {where}; save it as UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RecordingError(f"{path} is damaged, or cut off, as a gzip file: {error}") from error
    except csv.Error as error:
        raise RecordingError(f"{path} line {line}: {error}; is it CSV?") from error


def _separator(header: str) -> str:
    """What separates the values: the first that is there of commas, semicolons, tabs and bars."""
    return next((each for each in _SEPARATORS if each in header), ",")
