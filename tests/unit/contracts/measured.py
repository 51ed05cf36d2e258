"""Batches as hypothesis draws them: any columns whose lengths fit together."""

from functools import cache
from typing import Any

from hypothesis import strategies as st

from evenkeel.contracts.columns import CHANNEL, ITERATION, LISTED, OPERATION, PROCESS, READING, STAMP, Column
from evenkeel.telemetry.v2 import batch_pb2 as pb

_HIGHEST = {"bool": 1, "enum": 3, "int32": 2**31 - 1, "sint32": 2**31 - 1, "uint32": 2**32 - 1}
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)


def values_of(column: Column) -> st.SearchStrategy[Any]:
    """Values that a column can hold, whatever it means."""
    if column.wire == "string":
        return _TEXTS
    if column.dtype == "float64":
        return st.floats(allow_nan=False, width=32 if column.wire == "float" else 64)
    return st.integers(-1 if column.name == "rank" else 0, _HIGHEST.get(column.wire, 2**53))


@cache
def columns_of(column: Column, count: int, *, is_length: bool) -> st.SearchStrategy[list[Any]]:
    """So many of them: made once, for to make and check a strategy takes longer than to draw from it.

    Lengths are short.
    """
    values = st.integers(0, 2) if is_length else values_of(column)
    return st.lists(values, min_size=count, max_size=count)


@st.composite
def batch_messages(draw: st.DrawFn) -> pb.Batch:
    """One process's batch."""
    batch = pb.Batch()

    def fill(columns: tuple[Column, ...], count: int, lengths: tuple[str, ...] = ()) -> int:
        """Returns how much is told by the columns that tell lengths, which are kept short."""
        for column in columns:
            getattr(batch, column.name).extend(draw(columns_of(column, count, is_length=column.name in lengths)))
        return count

    fill(PROCESS, 1, ("num_iterations", "num_readings", "num_progress", "num_events"))
    fill(ITERATION, batch.num_iterations[0], ("num_listed", "num_operations", "num_channels"))
    fill(LISTED, sum(batch.num_listed))
    fill(OPERATION, sum(batch.num_operations))
    fill(CHANNEL, sum(batch.num_channels), ("channel_num_stamped",))
    fill(STAMP, sum(batch.channel_num_stamped))
    fill(READING, batch.num_readings[0])
    for _ in range(batch.num_progress[0]):
        batch.progress.add(iteration=draw(st.integers(0, 9)))
    for _ in range(batch.num_events[0]):
        batch.events.add(rank=draw(st.integers(0, 9)))
    return batch
