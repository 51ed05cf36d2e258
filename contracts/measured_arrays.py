"""What ranks measured in iterations, as arrays: the columns that batches and frames have in common."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.contracts.columns import (
    CHANNEL,
    ITERATION,
    LISTED,
    OPERATION,
    STAMP,
    ChannelColumns,
    Column,
    IterationColumns,
    ListedColumns,
    OperationColumns,
    ReadingColumns,
    StampColumns,
)
from evenkeel.numeric.arrays import Ints

Texts = tuple[str, ...]
Arrays = dict[str, npt.NDArray[Any]]

LISTS = (("num_listed", LISTED), ("num_operations", OPERATION), ("num_channels", CHANNEL))
"""Lists of an iteration: the column that tells their lengths, and theirs. A channel has its list of stamps in turn."""

COLUMNS = (*ITERATION, *chain.from_iterable(group for _, group in LISTS), *STAMP)
"""All columns of :class:`MeasuredArrays` but for readings of hosts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredArrays(IterationColumns, ListedColumns, OperationColumns, ChannelColumns, StampColumns, ReadingColumns):
    """The columns of :mod:`evenkeel.contracts.columns` by their names and in their units, 64 bits a number; read only.

    Those of iterations have one shape: [N] in batches, one behind the other; [T, R] in frames, but for ``iteration``,
    which is [T] there. Those of lists and of readings of hosts are flat, of one iteration and rank after the other.
    """

    def arrays(self) -> Arrays:
        """All columns of iterations and their lists by name."""
        return {column.name: getattr(self, column.name) for column in COLUMNS}


def read_column(message: Any, column: Column) -> npt.NDArray[Any]:
    """The array of a message's column."""
    values = getattr(message, column.name)[:]  # a list, which numpy takes in faster than the message's own sequence
    if column.wire == "uint64":  # what is beyond 63 bits is less than nothing, and nobody believes it
        return np.asarray(values, dtype=np.uint64).astype(np.int64)
    return np.asarray(values, dtype=column.dtype)


def write_columns(message: Any, arrays: Any, columns: Iterable[Column]) -> None:
    """Puts arrays, attributes of any shape by the names of ``columns``, into a message's empty fields."""
    for column in columns:
        values = getattr(arrays, column.name)
        getattr(message, column.name).extend(values if column.dtype == "str" else values.ravel().tolist())


def check_lengths(columns: Mapping[str, Sized], group: Iterable[Column], length: int, what: str) -> None:
    """Returns if columns have a value for each of so many.

    Raises:
        ValueError: One is not; the message says which, and both lengths.
    """
    for column in group:
        if len(columns[column.name]) != length:
            raise ValueError(f"{column.name} has {len(columns[column.name])} values for {length} {what}")


def check_lists(arrays: Arrays) -> None:
    """Returns if the lists are as long as is told of them.

    Raises:
        ValueError: One is not; the message says which column, and both lengths.
    """
    for lengths, group in (*LISTS, ("channel_num_stamped", STAMP)):
        check_lengths(arrays, group, int(arrays[lengths].sum()), f"that {lengths} tells of")


def picked(arrays: Arrays, rows: Ints) -> Arrays:
    """Some iterations of flat columns with their lists.

    Args:
        arrays: All columns, those of iterations [N].
        rows: Which of the N, flat, in any order; -1 for one that is not there, and has zeros and empty lists.
    """
    absent = rows < 0
    found = {column.name: arrays[column.name][rows] for column in ITERATION}
    if absent.any():
        for values in found.values():
            values[absent] = 0
    for lengths, group in LISTS:
        places = _places(arrays[lengths], rows, found[lengths])
        found |= {column.name: arrays[column.name][places] for column in group}
        if group is CHANNEL:
            stamps = _places(arrays["channel_num_stamped"], places, found["channel_num_stamped"])
            found |= {column.name: arrays[column.name][stamps] for column in STAMP}
    return found


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Flat columns one behind the other."""
    return {column.name: np.concatenate([part[column.name] for part in parts]) for column in COLUMNS}


def _places(lengths: Ints, rows: Ints, picked_lengths: Ints) -> Ints:
    """Where the list elements of ``rows`` are, given all lengths and those of the rows, 0 for one that is not there."""
    if not picked_lengths.any():
        return np.zeros(0, dtype=np.int64)
    begins = (np.cumsum(lengths) - lengths)[rows]
    ends = np.cumsum(picked_lengths)
    within = np.arange(ends[-1]) - np.repeat(ends - picked_lengths, picked_lengths)
    places: Ints = np.repeat(begins, picked_lengths) + within
    return places
