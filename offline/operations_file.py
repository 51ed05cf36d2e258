"""Recordings of operations (``--format ops``): a row for each operation of each worker, CSV or parquet."""

from pathlib import Path

from attribution import OperationError, Operations
from attribution.operations import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from offline.errors import RecordingError
from offline.tables import read_table


def read_operations(path: Path) -> Operations:
    """The operations in a file; columns as in :mod:`attribution.operations`.

    Raises:
        RecordingError: The file or what is in it cannot be used.
    """
    table = read_table(path, needed=REQUIRED_COLUMNS, optional=OPTIONAL_COLUMNS)
    columns = {name: cells if name == "optype" else table.numbers(name) for name, cells in table.columns.items()}
    try:
        return Operations.from_columns(columns)
    except OperationError as error:
        place = f"{path}" if error.row is None else table.place(error.row)
        raise RecordingError(f"{place}: {error.problem}") from error
