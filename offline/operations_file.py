"""Recordings of operations (``--format ops``): a row for each operation of each worker, CSV or parquet."""

from pathlib import Path

from attribution import OperationError, Operations
from attribution.operations import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from offline.errors import RecordingError
from offline.tables import numbers, read_table


def read_operations(path: Path) -> Operations:
    """The operations in a file; columns as in :mod:`attribution.operations`.

    Raises:
        RecordingError: The file or what is in it cannot be used.
    """
    cells = read_table(path, needed=REQUIRED_COLUMNS, optional=OPTIONAL_COLUMNS)
    columns = {name: cells[name] if name == "optype" else numbers(path, name, cells[name]) for name in cells}
    try:
        return Operations.from_columns(columns)
    except OperationError as error:
        raise RecordingError(f"{path}: {error}") from error
