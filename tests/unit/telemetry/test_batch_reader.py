"""What a fetch says, job by job; and that what nobody can have meant is refused alone."""

import contextlib
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.contracts.columns import LAUNCHER_INCARNATION, NO_RANK, PRESENT, SCHEDULER_INCARNATION, tell_process
from evenkeel.contracts.mac import JobKey, signed, verified
from evenkeel.contracts.topics import BATCHES, VERDICTS, record_headers
from evenkeel.services.common.kafka import ConsumedRecord, Partition
from evenkeel.services.telemetry.adapters.batch_reader import read_fetch
from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2
from tests.unit.contracts.measured import batch_messages
from tests.unit.telemetry.samples import Sample


def consumed(
    value: bytes | None, *, offset: int = 0, key: bytes | None = b"job", headers: list[tuple[str, bytes]] | None = None
) -> ConsumedRecord:
    return ConsumedRecord(Partition(BATCHES.name, 0), offset, 0.0, key, value, headers or [])


def as_it_is(_: bytes, value: bytes) -> bytes:
    """Of jobs that have no keys."""
    return value


def good(job_id: str = "job", rank: int = 3) -> pb.Batch:
    batch = Sample(rank, 5, wall_seconds=0.5, tokens=10, loss=math.nan).message(job_id)
    batch.num_listed[0], batch.num_progress[0], batch.num_events[0] = 1, 2, 1
    batch.listed_index.append(0)
    batch.listed_tokens.append(10)
    batch.listed_squares.append(100.0)
    batch.listed_kept.append(False)
    batch.progress.add(iteration=-1, operation_count=6, operation="forward")
    batch.progress.add(iteration=-1, operation_count=7, operation="forward")
    batch.events.add(kind=process_pb2.PROCESS_EVENT_KIND_DIED, rank=rank, at_unix_seconds=5.0)
    return batch


def spoiled(spoil: Callable[[pb.Batch], object]) -> pb.Batch:
    batch = good()
    spoil(batch)
    return batch


def test_a_good_batch_passes_and_a_loss_that_is_no_number_is_news_not_poison() -> None:
    value = good().SerializeToString()
    [job], rejections = read_fetch([consumed(value, headers=record_headers(BATCHES, "test"))], as_it_is)
    assert rejections == []
    assert math.isnan(job.arrived.batches.loss[0])
    assert [(each.rank, each.report.operation_count) for each in job.arrived.progress] == [(3, 7)]
    assert [(each.kind, each.rank) for each in job.arrived.events] == [("died", 3)]


def test_batches_of_several_jobs_come_apart_and_keep_their_offsets() -> None:
    told = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 0)]
    records = [
        consumed(good(job_id, rank).SerializeToString(), offset=70 + place, key=job_id.encode())
        for place, (job_id, rank) in enumerate(told)
    ]
    jobs, rejections = read_fetch(records, as_it_is)
    assert rejections == []
    found = [(job.job_id, job.arrived.batches.rank.tolist(), job.arrived.offsets.tolist()) for job in jobs]
    assert found == [("a", [0, 1, 0], [70, 72, 74]), ("b", [0, 1], [71, 73])]


def test_what_a_job_did_not_sign_is_refused_before_it_is_parsed_and_alone() -> None:
    key, stranger = JobKey(1, b"k" * 32), JobKey(1, b"l" * 32)
    value = good().SerializeToString()
    values = [signed(value, key), value, b"\xff" * 9, signed(value, stranger), signed(value, JobKey(2, b"k" * 32))]

    def believe(_: bytes, each: bytes) -> bytes:
        return verified(each, key)

    [job], rejections = read_fetch([consumed(each, offset=n) for n, each in enumerate(values)], believe)
    assert job.arrived.offsets.tolist() == [0]
    told = [(each.record.offset, each.error) for each in rejections]
    assert told == [(1, "unsigned"), (2, "unsigned"), (3, "signature"), (4, "unknown_key")]


def set_first(name: str, value: object) -> Callable[[pb.Batch], None]:
    def spoil(batch: pb.Batch) -> None:
        getattr(batch, name)[0] = value

    return spoil


def told_by(incarnation: int, kind: process_pb2.ProcessEventKind.ValueType) -> pb.Batch:
    """A batch under no rank that tells of rank 1."""
    batch = pb.Batch()
    tell_process(batch, job_id="job", rank=NO_RANK, incarnation=incarnation, num_events=1)
    batch.events.add(kind=kind, rank=1, at_unix_seconds=5.0)
    return batch


HOSTILE: dict[str, tuple[str, pb.Batch]] = {
    **{
        f"{name} {value}": ("value", spoiled(set_first(name, value)))
        for name in (
            "wall_seconds",
            "started_at_unix_seconds",
            "forward_seconds",
            "backward_multiple",
            "listed_squares",
        )
        for value in (math.nan, math.inf, -math.inf, -1e-9, 1e38)
    },
    **{
        f"{name} negative": ("value", spoiled(set_first(name, -2)))
        for name in ("rank", "incarnation", "epoch", "stage", "iteration", "tokens", "peak_memory_bytes")
    },
    "too many lost": ("value", spoiled(set_first("num_dropped", 2**63))),
    "no job": ("job_id", spoiled(set_first("job_id", ""))),
    "a job of control characters": ("job_id", spoiled(set_first("job_id", "a\nb"))),
    "zero in a node": ("text", spoiled(set_first("node", "a\0b"))),
    "a long device": ("size", spoiled(set_first("device", "x" * 5000))),
    "nobody's iterations": ("rank", spoiled(set_first("rank", -1))),
    "a short column": ("columns", spoiled(lambda batch: batch.wall_seconds.pop())),
    "a long column": ("columns", spoiled(lambda batch: batch.tokens.append(1))),
    "a list too long": ("columns", spoiled(lambda batch: batch.listed_index.append(1))),
    "events that nobody told of": ("columns", spoiled(lambda batch: batch.events.add())),
    "two batches": ("columns", spoiled(lambda batch: batch.MergeFrom(good()))),
    "an end told by a rank of its process before": (
        "speaker",
        spoiled(lambda batch: setattr(batch.events[0], "incarnation", 1)),
    ),
    "an end of another rank": ("speaker", spoiled(lambda batch: setattr(batch.events[0], "rank", 1))),
    "an end told by the scheduler": (
        "speaker",
        told_by(SCHEDULER_INCARNATION, process_pb2.PROCESS_EVENT_KIND_FINISHED),
    ),
    "a broken stream told by the launcher": (
        "speaker",
        told_by(LAUNCHER_INCARNATION, process_pb2.PROCESS_EVENT_KIND_STREAM_BROKEN),
    ),
    "an event of no time": ("value", spoiled(lambda batch: setattr(batch.events[0], "at_unix_seconds", math.nan))),
    "an event's long detail": ("size", spoiled(lambda batch: setattr(batch.events[0], "detail", "x" * 5000))),
    "progress of no time": ("value", spoiled(lambda batch: setattr(batch.progress[0], "at_unix_seconds", -1.0))),
    "waiting for nobody": ("value", spoiled(lambda batch: batch.progress[1].waiting_for.append(-5))),
}


@pytest.mark.parametrize(("word", "batch"), HOSTILE.values(), ids=list(HOSTILE))
def test_what_nobody_can_have_meant_is_refused_alone(word: str, batch: pb.Batch) -> None:
    key = batch.job_id[0].encode() if word == "job_id" else b"job"
    records = [
        consumed(good(rank=0).SerializeToString(), offset=1),
        consumed(batch.SerializeToString(), offset=2, key=key),
        consumed(good(rank=1).SerializeToString(), offset=3),
    ]
    [job], [refused] = read_fetch(records, as_it_is)
    assert (refused.error, refused.record.offset) == (word, 2)
    assert job.arrived.batches.rank.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (consumed(None), "empty"),
        (consumed(b""), "empty"),
        (consumed(b"\xff" * 9), "malformed"),
        (consumed(good().SerializeToString(), key=b"another"), "key"),
        (consumed(good().SerializeToString(), key=None), "key"),
        (consumed(b"x" * (9 << 20)), "size"),
        (consumed(good().SerializeToString(), headers=record_headers(VERDICTS, "test")), "version"),
        (consumed(good().SerializeToString(), headers=[("content-type", b"text/plain")]), "version"),
    ],
)
def test_records_that_are_no_batches_are_refused_with_a_word(record: ConsumedRecord, word: str) -> None:
    jobs, [refused] = read_fetch([record], as_it_is)
    assert jobs == []
    assert refused.error == word


def test_columns_of_two_that_only_fit_together_spoil_each_other_and_nobody_else() -> None:
    short, long = good(rank=0), good(rank=1)
    long.wall_seconds.append(short.wall_seconds.pop())
    other = consumed(good("other").SerializeToString(), key=b"other", offset=9)
    jobs, rejections = read_fetch(
        [consumed(short.SerializeToString()), consumed(long.SerializeToString()), other], as_it_is
    )
    # Together they have as many values as they tell of: what stays within limits is believed of the job that sent it.
    assert [job.job_id for job in jobs][-1] == "other"
    assert all(rejection.record.key == b"job" for rejection in rejections)


@settings(max_examples=50)
@given(st.lists(st.one_of(st.binary(max_size=40), batch_messages().map(pb.Batch.SerializeToString)), max_size=4))
def test_whatever_comes_a_good_batch_beside_it_is_read(values: list[bytes]) -> None:
    records = [consumed(value, offset=offset) for offset, value in enumerate(values)]
    jobs, rejections = read_fetch([*records, consumed(good().SerializeToString(), offset=99)], as_it_is)
    [job] = jobs
    assert job.arrived.offsets[-1] == 99
    assert job.arrived.batches.flags[-1] & PRESENT
    assert len(job.records) + len(rejections) == len(values) + 1
    with contextlib.suppress(IndexError):
        assert rejections[0].reason
