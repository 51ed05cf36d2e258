"""Batches of a job as arrays: a fetch of them is joined byte for byte, parsed once, and read into these columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenkeel.contracts.columns import ITERATION, PROCESS, READING
from evenkeel.contracts.measured_arrays import (
    COLUMNS,
    Floats,
    Ints,
    MeasuredArrays,
    Texts,
    check_lists,
    read_column,
)

_MESSAGES = {"num_progress": "progress", "num_events": "events"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batches(MeasuredArrays):
    """B batches with N iterations together, in the order in which they were joined.

    Attributes:
        process_of: [N] Place among the B batches of the one that each iteration came in.
        reading_process_of: The same of each host reading.
    """

    job_id: Texts
    node: Texts
    device: Texts
    rank: Ints
    incarnation: Ints
    epoch: Ints
    replica: Ints
    stage: Ints
    shard: Ints
    sequence: Ints
    num_dropped: Ints
    forward_flops_per_token: Floats
    forward_flops_per_squared_length: Floats
    backward_multiple: Floats
    num_iterations: Ints
    num_readings: Ints
    num_progress: Ints
    num_events: Ints
    process_of: Ints
    reading_process_of: Ints

    def __len__(self) -> int:
        return len(self.rank)


def read_batches(message: Any) -> Batches:
    """The columns of a ``Batch`` message, which may be several joined.

    Raises:
        ValueError: Columns do not fit together; the message says which.
    """
    texts: dict[str, Any] = {
        column.name: tuple(getattr(message, column.name)) for column in PROCESS if column.dtype == "str"
    }
    numbers = [column for column in (*PROCESS, *READING, *COLUMNS) if column.dtype != "str"]
    arrays: dict[str, Any] = {column.name: read_column(message, column) for column in numbers}
    num_batches = len(texts["job_id"])
    told = {lengths: int(arrays[lengths].sum()) for lengths in ("num_iterations", "num_readings", *_MESSAGES)}
    for group, length in (
        (PROCESS, num_batches),
        (ITERATION, told["num_iterations"]),
        (READING, told["num_readings"]),
    ):
        for column in group:
            values = texts[column.name] if column.dtype == "str" else arrays[column.name]
            if len(values) != length:
                raise ValueError(f"{column.name} has {len(values)} values where {length} are told of")
    for lengths, name in _MESSAGES.items():
        if len(getattr(message, name)) != told[lengths]:
            raise ValueError(f"{name} has {len(getattr(message, name))} messages, {lengths} tells of {told[lengths]}")
    check_lists(arrays)
    owners = np.arange(num_batches)
    return Batches(
        **texts,
        **arrays,
        process_of=np.repeat(owners, arrays["num_iterations"]),
        reading_process_of=np.repeat(owners, arrays["num_readings"]),
    )
