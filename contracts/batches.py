"""Batches of a job as arrays: a fetch of them is joined byte for byte, parsed once, and read into these columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenkeel.contracts.columns import ITERATION, PROCESS, READING, ProcessColumns
from evenkeel.contracts.measured_arrays import COLUMNS, MeasuredArrays, check_lengths, check_lists, read_column
from evenkeel.numeric.arrays import Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches(MeasuredArrays, ProcessColumns):
    """B batches with N iterations together, in the order in which they were joined.

    Attributes:
        process_of: [N] Place among the B batches of the one that each iteration came in.
        reading_process_of: The same of each host reading.
    """

    process_of: Ints
    reading_process_of: Ints

    def __len__(self) -> int:
        return len(self.rank)


def read_batches(message: Any) -> Batches:
    """The columns of a ``Batch`` message, which may be several joined.

    Raises:
        ValueError: Columns do not fit together; the message says which.
    """
    columns: dict[str, Any] = {
        column.name: tuple(getattr(message, column.name)) if column.dtype == "str" else read_column(message, column)
        for column in (*PROCESS, *READING, *COLUMNS)
    }
    num_batches = len(columns["job_id"])
    check_lengths(columns, PROCESS, num_batches, "batches")
    check_lengths(columns, ITERATION, int(columns["num_iterations"].sum()), "iterations")
    check_lengths(columns, READING, int(columns["num_readings"].sum()), "readings")
    for messages in ("progress", "events"):
        found, told = len(getattr(message, messages)), int(columns[f"num_{messages}"].sum())
        if found != told:
            raise ValueError(f"{messages} has {found} messages, num_{messages} tells of {told}")
    check_lists(columns)
    owners = np.arange(num_batches)
    return Batches(
        **columns,
        process_of=np.repeat(owners, columns["num_iterations"]),
        reading_process_of=np.repeat(owners, columns["num_readings"]),
    )
