"""A run of frames says what its frames say one by one; what does not fit together is refused."""

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.contracts.topics import PROFILES
from evenkeel.contracts.unrolled import ONCE, unrolled
from evenkeel.detector.v1 import detector_pb2
from evenkeel.services.common.kafka import RejectedRecordError
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.domain.observation import FrameObservation
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from tests.unit.detector.test_codec import consumed
from tests.unit.detector.test_frame_columns import FEW, NUMBERS, in_columns
from tests.unit.detector.test_handler import World, story

COLUMNS = tuple(pb.FrameColumns.DESCRIPTOR.fields_by_name)
LISTS = ("workload_sizes", "micro_batch_indexes", "micro_batch_tokens", "micro_batch_sums_of_squares")


def rolled(frames: Sequence[pb.Observation], *, once: bool = True) -> pb.Observation:
    """One observation of frames in columns; with ``once`` what is the same in all of them is told once."""
    run = pb.FrameRun(epoch=frames[0].frame.epoch)
    for each in frames:
        run.iterations.append(each.frame.iteration)
        run.closed_at_unix_seconds.append(each.frame.closed_at_unix_seconds)
        run.last_sample_at_unix_seconds.append(each.frame.last_sample_at_unix_seconds)
    for name in COLUMNS:
        columns = [list(getattr(each.frame.columns, name)) for each in frames]
        is_same = name not in LISTS and once and all(each == columns[0] for each in columns)
        told = columns[:1] if name in ONCE or is_same else columns
        getattr(run.columns, name).extend([value for each in told for value in each])
    return pb.Observation(job_id=frames[0].job_id, sequence=frames[0].sequence, run=run)


@st.composite
def frames(draw: st.DrawFn) -> list[pb.Observation]:
    """Frames in columns of the same ranks, with as many lists of micro-batches each."""
    ranks = sorted(draw(st.sets(st.integers(0, 1000), max_size=4)))
    num_lists = draw(st.integers(1, 2))
    seats = {
        name: [draw(values) for _ in ranks]
        for name, values in (
            ("incarnations", FEW),
            ("device_of", st.integers(0, 1)),
            ("stages", FEW),
            ("forward_flops_per_token", NUMBERS),
            ("backward_multiple", NUMBERS),
        )
    }
    found = []
    for place in range(draw(st.integers(1, 4))):
        sizes = [draw(FEW) for _ in range(num_lists)]
        columns = pb.FrameColumns(
            ranks=ranks,
            names=["one", "other"],
            **seats,  # type: ignore[arg-type] # a column each
            workload_of=[draw(st.integers(0, num_lists - 1)) for _ in ranks],
            workload_sizes=sizes,
            micro_batch_indexes=range(sum(sizes)),
            micro_batch_tokens=[draw(st.integers(0, 9)) for _ in range(sum(sizes))],
            micro_batch_sums_of_squares=[draw(NUMBERS) for _ in range(sum(sizes))],
        )
        for name in ("wall_seconds", "forward_seconds", "data_seconds", "gradient_wait_seconds", "losses"):
            getattr(columns, name).extend(draw(NUMBERS) for _ in ranks)
        columns.has_loss.extend(draw(st.booleans()) for _ in ranks)
        columns.marks.extend(draw(st.sampled_from([0, 0, 1])) for _ in ranks)  # type: ignore[misc] # numbers of marks
        frame = pb.Frame(iteration=7 + place, epoch=3, closed_at_unix_seconds=1.0 + place, columns=columns)
        found.append(pb.Observation(job_id="job", sequence=40 + place, frame=frame))
    return found


def decoded(messages: Sequence[pb.Observation]) -> list[FrameObservation]:
    found = [one for each in messages for one in decode_observations(consumed(each.SerializeToString())).observations]
    assert all(isinstance(one, FrameObservation) for one in found)
    return found  # type: ignore[return-value] # just seen


@given(frames(), st.booleans())
def test_a_run_says_what_its_frames_do(alone: list[pb.Observation], once: bool) -> None:
    run = rolled(alone, once=once)
    for one, other, third in zip(decoded([run]), decoded(alone), decoded([*unrolled(run)]), strict=True):
        for field in fields(FrameObservation):
            for each in (one, third):
                np.testing.assert_array_equal(getattr(each, field.name), getattr(other, field.name))
        assert all(getattr(one, name).flags.c_contiguous for name in ("numbers", "integers", "flags"))


def a_run() -> pb.Observation:
    columns = pb.FrameColumns(ranks=[0, 1], wall_seconds=[1.0, 2.0, 3.0, 4.0], workload_sizes=[1, 1])
    columns.micro_batch_tokens.extend([5, 6])
    run = pb.FrameRun(
        iterations=[4, 5], closed_at_unix_seconds=[1.0, 2.0], last_sample_at_unix_seconds=[1.0, 2.0], columns=columns
    )
    return pb.Observation(job_id="job", run=run)


def test_what_is_newest_in_a_run_says_how_old_it_is() -> None:
    assert decode_observations(consumed(a_run().SerializeToString())).newest_at_seconds == 2.0


SPOILED: dict[str, Callable[[pb.FrameRun], object]] = {
    "no frames": lambda run: run.Clear(),
    "a frame that closed at no time": lambda run: run.closed_at_unix_seconds.pop(),
    "a frame whose samples came at no time": lambda run: run.last_sample_at_unix_seconds.pop(),
    "a column of three": lambda run: run.columns.wall_seconds.pop(),
    "a list for one frame": lambda run: run.columns.workload_sizes.append(0),
    "less than an empty list": lambda run: run.columns.workload_sizes.__setitem__(0, -1),
}
ONLY_READ_AT_ONCE: dict[str, Callable[[pb.FrameRun], object]] = {
    "a time that is none": lambda run: run.closed_at_unix_seconds.__setitem__(1, float("nan")),
    "the list of another frame": lambda run: run.columns.workload_of.extend([0, 1]),
    "a rank twice": lambda run: run.columns.ranks.__setitem__(0, 1),
    "ranks in no order": lambda run: run.columns.ranks.__setitem__(0, 2),
    "a rank below none": lambda run: run.columns.ranks.__setitem__(0, -1),
    "tokens of no micro-batch": lambda run: run.columns.micro_batch_tokens.append(1),
    "more entries than can be": lambda run: run.CopyFrom(
        pb.FrameRun(
            iterations=[0] * 2048,
            closed_at_unix_seconds=[0.0] * 2048,
            last_sample_at_unix_seconds=[0.0] * 2048,
            columns=pb.FrameColumns(ranks=range(1024)),
        )
    ),
}


@pytest.mark.parametrize("spoil", [*SPOILED.values(), *ONLY_READ_AT_ONCE.values()], ids=[*SPOILED, *ONLY_READ_AT_ONCE])
def test_a_run_that_makes_no_sense_is_refused(spoil: Callable[[pb.FrameRun], object]) -> None:
    message = a_run()
    spoil(message.run)
    message.run.SetInParent()
    with pytest.raises(RejectedRecordError):
        decode_observations(consumed(message.SerializeToString()))


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=[*SPOILED])
def test_a_run_that_makes_no_sense_is_no_observations(spoil: Callable[[pb.FrameRun], object]) -> None:
    message = a_run()
    spoil(message.run)
    message.run.SetInParent()
    with pytest.raises(ValueError, match="frames"):
        list(unrolled(message))


def told_in_runs(messages: Sequence[pb.Observation], sizes: Sequence[int]) -> list[pb.Observation]:
    """The same observations, so many frames in a record by turns."""
    found: list[pb.Observation] = []
    waiting: list[pb.Observation] = []
    for message in messages:
        if message.HasField("frame"):
            frame = in_columns(message.frame, lean=False)
            frame.last_sample_at_unix_seconds = message.frame.last_sample_at_unix_seconds
            waiting.append(pb.Observation(job_id=message.job_id, sequence=message.sequence, frame=frame))
        counts = {len(each.frame.columns.workload_sizes) for each in waiting}
        if len(waiting) == sizes[len(found) % len(sizes)] or not message.HasField("frame") or len(counts) > 1:
            found += [rolled(waiting)] if len(waiting) > 1 and len(counts) == 1 else waiting
            waiting = []
        if not message.HasField("frame"):
            found.append(message)
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("sizes", [(1,), (7,), (1, 30, 2), (64,)])
async def test_killed_between_any_records_nothing_of_a_run_is_lost_or_repeated(sizes: tuple[int, ...]) -> None:
    world, messages = World(), told_in_runs(story(), sizes)
    assert sum(max(1, len(each.run.iterations)) for each in messages) == 121
    for place in range(0, len(messages), 2):
        async with world.detector():
            await world.tell(*messages[place : place + 2])
            await world.until_committed(min(place + 2, len(messages)))
    assert [(one.kind, one.culprits[0].rank) for one in world.verdicts()] == [
        (detector_pb2.VERDICT_KIND_COMPUTE_SLOW, 2),
        (detector_pb2.VERDICT_KIND_RECOVERED, 2),
        (detector_pb2.VERDICT_KIND_FAIL_STOP, 7),
    ]


@pytest.mark.asyncio
async def test_of_what_comes_at_once_the_newest_profile_is_told_and_every_verdict() -> None:
    world, alone = World(), World()
    for each, messages in ((world, told_in_runs(story(), (60,))), (alone, told_in_runs(story(), (1,)))):
        async with each.detector():
            await each.tell(*messages)
            await each.until_committed(len(messages))
    assert [one.verdict_id for one in world.verdicts()] == [one.verdict_id for one in alone.verdicts()]
    told, every = ([record.value for record in each.broker.records(PROFILES.name)] for each in (world, alone))
    assert len(told) < len(every)
    assert told[-1] == every[-1]
    assert set(told) <= set(every)


@pytest.mark.asyncio
async def test_without_a_snapshot_runs_are_read_again_and_found_under_the_same_ids() -> None:
    world, messages = World(), told_in_runs(story(), (30,))
    async with world.detector(snapshot_seconds=1_000.0):
        await world.tell(*messages)
        await world.until_verdicts(3)
    async with world.detector(snapshot_seconds=1_000.0):
        await world.until_verdicts(6)
    ids = [verdict.verdict_id for verdict in world.verdicts()]
    assert ids[:3] == ids[3:]
