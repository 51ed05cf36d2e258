"""Frames: what is written is read, parts of them are those frames, and what does not fit together is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.contracts.columns import (
    CHANNEL,
    HAS_LOSS,
    ITERATION,
    LISTED,
    OPERATION,
    PRESENT,
    READING,
    STAMP,
    Column,
)
from evenkeel.contracts.frames import MEMBER, Frames, read_frames, write_frames
from evenkeel.contracts.measured_arrays import COLUMNS
from evenkeel.telemetry.v2 import frames_pb2 as pb
from tests.unit.contracts.measured import values_of


@st.composite
def frames_messages(draw: st.DrawFn) -> pb.Frames:
    """Frames of one to three iterations and members."""
    num_frames, num_members = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    message = pb.Frames(epoch=draw(st.integers(0, 9)))

    def fill(into: Any, columns: tuple[Column, ...], count: int, lengths: tuple[str, ...] = ()) -> None:
        for column in columns:
            values = st.integers(0, 2) if column.name in lengths else values_of(column)
            getattr(into, column.name).extend(draw(st.lists(values, min_size=count, max_size=count)))

    members, num_entries = message.members, num_frames * num_members
    members.names.extend(["n0", "n1", "cuda:0"])
    fill(members, MEMBER[1:], num_members, ("node_of", "device_of"))
    members.rank.extend(range(num_members))
    fill(message, ITERATION[:1], num_frames)
    fill(message, ITERATION[1:], num_entries, ("num_listed", "num_operations", "num_channels"))
    fill(message, LISTED, sum(message.num_listed))
    fill(message, OPERATION, sum(message.num_operations))
    fill(message, CHANNEL, sum(message.num_channels), ("channel_num_stamped",))
    fill(message, STAMP, sum(message.channel_num_stamped))
    message.closed_at_unix_seconds.extend(range(num_frames))
    message.last_heard_at_unix_seconds.extend(range(num_frames))
    num_readings = draw(st.integers(0, 2))
    fill(message, READING, num_readings)
    message.reading_of.extend(draw(st.integers(0, num_members - 1)) for _ in range(num_readings))
    return message


def _written(frames: Frames) -> pb.Frames:
    message = pb.Frames()
    write_frames(message, frames)
    return message


@given(frames_messages())
@settings(max_examples=40)
def test_reading_and_writing_keep_every_value(message: pb.Frames) -> None:
    frames = read_frames(message)
    assert _written(frames) == message
    shape = (len(frames), len(frames.members))
    for column in ITERATION[1:]:
        array = getattr(frames, column.name)
        assert array.shape == shape
        assert array.dtype == column.dtype
        assert array.flags.c_contiguous


@given(frames_messages(), st.data())
@settings(max_examples=40)
def test_parts_one_behind_the_other_are_the_whole(message: pb.Frames, data: st.DataObject) -> None:
    frames = read_frames(message)
    cut = data.draw(st.integers(0, len(frames)))
    parts = [frames.part(first, stop) for first, stop in ((0, cut), (cut, len(frames))) if first < stop]
    for column in COLUMNS:
        whole = getattr(frames, column.name)
        assert np.array_equal(np.concatenate([getattr(part, column.name) for part in parts]), whole)
    assert sum(len(part.reading_of) for part in parts) == len(frames.reading_of)
    assert [len(each) for each in frames.each()] == [1] * len(frames)


def test_flags_say_what_is_known() -> None:
    message = pb.Frames(epoch=0, iteration=[7], closed_at_unix_seconds=[1.0], last_heard_at_unix_seconds=[1.0])
    message.members.names.append("n")
    for column in MEMBER:
        getattr(message.members, column.name).extend([0, 0] if column.name != "rank" else [3, 5])
    for column in ITERATION[1:]:
        getattr(message, column.name).extend([0, 0] if column.name != "flags" else [PRESENT | HAS_LOSS, 0])
    frames = read_frames(message)
    assert frames.present.tolist() == [[True, False]]
    assert frames.has(HAS_LOSS).tolist() == [[True, False]]
    assert frames.members.nodes == ("n", "n")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("wall_seconds", 1.0, "wall_seconds has"),
        ("listed_tokens", 1, "listed_tokens has"),
        ("closed_at_unix_seconds", 1.0, "closed_at_unix_seconds has"),
        ("stamp_bytes", 1, "stamp_bytes has"),
        ("reading_of", 0, "host readings"),
        ("members.stage", 0, "stage has"),
        ("members.rank", 9, r"has \d values for \d members"),
    ],
)
@given(message=frames_messages())
@settings(max_examples=10)
def test_columns_that_do_not_fit_together_are_refused(path: str, value: float, told: str, message: pb.Frames) -> None:
    target: Any = message
    *parents, name = path.split(".")
    for parent in parents:
        target = getattr(target, parent)
    getattr(target, name).append(value)
    with pytest.raises(ValueError, match=told if path != "members.rank" else "values for"):
        read_frames(message)
