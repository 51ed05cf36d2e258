"""Batches: what is written is read, and bytes one behind the other are the batches one behind the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.contracts.batches import Batches, read_batches
from evenkeel.contracts.columns import PROCESS, READING
from evenkeel.contracts.measured_arrays import COLUMNS, write_columns
from evenkeel.telemetry.v2 import batch_pb2 as pb
from tests.unit.contracts.measured import batch_messages

_ALL = (*PROCESS, *COLUMNS, *READING)


def _values(batches: Batches) -> dict[str, list[object]]:
    return {column.name: list(getattr(batches, column.name)) for column in _ALL}


@given(batch_messages())
def test_reading_and_writing_keep_every_value(message: pb.Batch) -> None:
    batches = read_batches(message)
    written = pb.Batch(progress=message.progress, events=message.events)
    write_columns(written, batches, _ALL)
    assert written == message
    assert all(getattr(batches, column.name).dtype == column.dtype for column in COLUMNS)


@given(st.lists(batch_messages(), min_size=1, max_size=4))
def test_bytes_one_behind_the_other_are_the_batches_one_behind_the_other(messages: list[pb.Batch]) -> None:
    whole = read_batches(pb.Batch.FromString(b"".join(each.SerializeToString() for each in messages)))
    parts = [_values(read_batches(each)) for each in messages]
    assert _values(whole) == {name: [value for part in parts for value in part[name]] for name in parts[0]}
    assert whole.process_of.tolist() == [
        place for place, each in enumerate(messages) for _ in range(each.num_iterations[0])
    ]
    assert len(whole) == len(messages)


@given(batch_messages(), st.data())
def test_a_column_that_is_too_short_or_too_long_is_named(message: pb.Batch, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([column.name for column in _ALL if column.name != "job_id"]))
    getattr(message, name).append(_some(name))
    with pytest.raises(ValueError, match=r"\w+ has \d+"):
        read_batches(message)


def _some(name: str) -> object:
    dtype = next(column.dtype for column in _ALL if column.name == name)
    return "x" if dtype == "str" else 1


def test_nothing_at_all_are_no_batches() -> None:
    batches = read_batches(pb.Batch())
    assert len(batches) == 0
    assert all(len(getattr(batches, column.name)) == 0 for column in _ALL)
    assert batches.wall_seconds.dtype == np.float64
