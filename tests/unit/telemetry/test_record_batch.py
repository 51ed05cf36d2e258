"""A batch decoded at once says what its records say one by one, of good bytes and of bad ones."""

import math
from collections.abc import Sequence

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.contracts.headers import record_headers
from evenkeel.contracts.topics import RECORDS
from evenkeel.services.common.kafka import ConsumedRecord, Partition, RejectedRecordError
from evenkeel.services.telemetry.adapters.record_batch import ArrivedBatch, ArrivedRun, RecordBatchDecoder
from evenkeel.services.telemetry.adapters.record_decoder import decode_record, samples_of
from evenkeel.services.telemetry.domain.observed import ArrivedSample
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from tests.unit.telemetry.frame_reading import frame_of, sample_in, without_key


def consumed(value: bytes | None, offset: int = 0, *, key: bytes = b"job") -> ConsumedRecord:
    return ConsumedRecord(
        partition=Partition(RECORDS.name, 0),
        offset=offset,
        timestamp_seconds=0.0,
        key=key,
        value=value,
        headers=record_headers(RECORDS, "test"),
    )


def decode(values: Sequence[bytes]) -> ArrivedBatch:
    decoder = RecordBatchDecoder()
    records = [consumed(value, offset) for offset, value in enumerate(values)]
    decoder.decode(records)  # the second time it knows the names
    return decoder.decode(records)


def samples_in(batch: ArrivedBatch) -> list[ArrivedSample]:
    return [sample for run in batch.runs for sample in batch.block.samples(run.first_row, run.stop_row)]


# A negative zero is left out of a column as any zero is.
seconds = st.one_of(st.just(0.0), st.floats(0.0, 1000.0))
hostile_seconds = st.one_of(seconds, st.sampled_from([math.nan, math.inf, -1.0, 1e9, -0.0]))


@st.composite
def samples(draw: st.DrawFn, *, times: st.SearchStrategy[float] = seconds) -> pb.Sample:
    sample = pb.Sample(
        iteration=draw(st.sampled_from([0, 1, 127, 128, 300_000, 2**40])),
        epoch=draw(st.integers(0, 3)),
        wall_seconds=draw(times),
        started_at_unix_seconds=draw(seconds),
        peak_memory_bytes=draw(st.sampled_from([0, 5, 80 << 30])),
        mark=draw(st.sampled_from(pb.Mark.values())),  # type: ignore[arg-type]
        micro_batches=[
            pb.MicroBatch(index=index, tokens=draw(st.integers(0, 2**20)), sum_of_squares=draw(seconds))
            for index in range(draw(st.integers(0, 4)))
        ],
        kept_micro_batches=[
            pb.MicroBatch(index=index, tokens=7, sum_of_squares=draw(times))
            for index in range(draw(st.sampled_from([0, 0, 0, 2])))
        ],
    )
    if draw(st.booleans()):
        sample.compute.MergeFrom(pb.ComputeSeconds(forward=draw(times), backward=draw(seconds), data=draw(seconds)))
    if draw(st.booleans()):
        sample.waiting.MergeFrom(pb.WaitingSeconds(tensor=draw(seconds), vote=draw(times)))
    if draw(st.booleans()):
        sample.position.MergeFrom(
            pb.Position(replica=draw(st.integers(0, 2**31 - 1)), shard=1, backward_multiple=draw(seconds))
        )
    if draw(st.booleans()):
        sample.loss = draw(st.floats()) + 0.0
    if draw(st.booleans()):
        sample.gradient_norm = draw(st.floats()) + 0.0
    if draw(st.booleans()):
        sample.traffic.MergeFrom(pb.Traffic(parties=[1, 2], num_bytes=[3, 4], entered_microseconds=[7] * 200))
    return sample


@st.composite
def records(draw: st.DrawFn, *, times: st.SearchStrategy[float] = seconds) -> pb.Record:
    return pb.Record(
        job_id="job",
        rank=draw(st.integers(0, 5)),
        incarnation=draw(st.integers(0, 2)),
        sequence=draw(st.integers(0, 2**40)),
        num_dropped=draw(st.integers(0, 3)),
        node=draw(st.sampled_from(["", "node-1", "knoten-ä"])),
        device=draw(st.sampled_from(["gpu-0", "gpu-1"])),
        samples=draw(st.lists(samples(times=times), max_size=3)),
        progress=[pb.Progress(iteration=3, operation="forward", operation_count=7)] * draw(st.integers(0, 2)),
        events=[pb.ProcessEvent(rank=2, kind=pb.PROCESS_EVENT_KIND_DIED)] * draw(st.sampled_from([0, 0, 0, 1])),
    )


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=6))
def test_what_arrives_is_what_was_sent(sent: list[pb.Record]) -> None:
    batch = decode([record.SerializeToString() for record in sent])
    assert not batch.rejections
    assert len(batch.block) == sum(len(record.samples) for record in sent)
    left, offset = list(sent), 0
    for run in batch.runs:
        told, left = left[: len(run.numbers)], left[len(run.numbers) :]
        assert run.numbers.tolist() == [
            [record.rank, record.incarnation, record.sequence, record.num_dropped] for record in told
        ]
        assert {record.job_id for record in told} == {run.job_id}
        expected = [sample for place, record in enumerate(told) for sample in samples_of(record, offset=offset + place)]
        offset += len(told)
        assert run.newest_offset == offset - 1
        check_run(run, told)
        arrived = batch.block.samples(run.first_row, run.stop_row)
        assert [each[:8] for each in arrived] == [each[:8] for each in expected]
        one_a_rank = {each.rank: index for index, each in enumerate(expected)}
        if one_a_rank:
            frame = frame_of([arrived[one_a_rank[rank]] for rank in sorted(one_a_rank)])
            assert not frame.entries
            for entry, rank in enumerate(sorted(one_a_rank)):
                wanted = without_key(expected[one_a_rank[rank]].payload)
                found = sample_in(frame.columns, entry)
                assert found.SerializeToString(deterministic=True) == wanted.SerializeToString(deterministic=True)
    assert not left


def check_run(run: ArrivedRun, told: Sequence[pb.Record]) -> None:
    """Events come alone; nothing of them or of the newest progress is lost."""
    assert [event.payload for event in run.events] == [event for record in told for event in record.events]
    assert not run.events or len(told) == 1
    assert run.num_samples.tolist() == [len(record.samples) for record in told]
    assert [row for row, _ in run.progress] == [row for row, record in enumerate(told) if record.progress]
    for row, progress in run.progress:
        newest = told[row].progress[-1]
        rank, incarnation = told[row].rank, told[row].incarnation
        assert progress[:4] == (rank, incarnation, newest.operation_count, newest.seconds_in_operation)
        assert pb.Progress.FromString(progress.payload) == newest


@st.composite
def reports(draw: st.DrawFn) -> pb.Progress:
    return pb.Progress(
        at_unix_seconds=draw(st.sampled_from([0.0, 1.7e9, math.nan, -1.0, 1e12])),
        iteration=draw(st.sampled_from([0, 5, 2**40, -1, 2**53 - 1, 2**53])),
        epoch=draw(st.sampled_from([0, 3, -1])),
        operation_count=draw(st.sampled_from([0, 9, 2**53, 2**63])),
        operation=draw(st.sampled_from(["", "forward", "wait:tensor", "zero \0", "x" * 5000, "größe"])),
        seconds_in_operation=draw(st.sampled_from([0.0, 0.5, math.inf])),
        waiting_for=draw(st.lists(st.integers(-1, 100_000), max_size=3)),
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(reports(), max_size=3), min_size=1, max_size=5))
def test_progress_is_believed_or_refused_as_that_of_records_one_by_one(told: list[list[pb.Progress]]) -> None:
    sent = [pb.Record(job_id="job", rank=rank, progress=progress) for rank, progress in enumerate(told)]
    values = [record.SerializeToString() for record in sent]
    good = []
    for record in sent:
        try:
            good.append(decode_record(consumed(record.SerializeToString())))
        except RejectedRecordError:
            continue
    batch = decode(values)
    assert len(batch.rejections) == len(sent) - len(good)
    left = list(good)
    for run in batch.runs:
        check_run(run, left[: len(run.numbers)])
        left = left[len(run.numbers) :]
    assert not left


@settings(deadline=None)
@given(st.lists(records(times=hostile_seconds), min_size=1, max_size=5))
def test_a_batch_refuses_what_its_records_are_refused_for(sent: list[pb.Record]) -> None:
    values = [record.SerializeToString() for record in sent]
    refused = {}
    for offset, value in enumerate(values):
        try:
            decode_record(consumed(value, offset))
        except RejectedRecordError as error:
            refused[offset] = (error.error, error.reason)
    batch = decode(values)
    assert {each.record.offset: (each.error, each.reason) for each in batch.rejections} == refused
    assert sum(len(run.numbers) for run in batch.runs) == len(sent) - len(refused)
    assert [sample.offset for sample in samples_in(batch)] == [
        offset for offset, record in enumerate(sent) if offset not in refused for _ in record.samples
    ]


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_spoiled_bytes_are_read_as_one_by_one_or_refused(sent: list[pb.Record], data: st.DataObject) -> None:
    values = []
    for record in sent:
        value = bytearray(record.SerializeToString())
        for _ in range(data.draw(st.integers(0, 3))):
            place = data.draw(st.integers(0, len(value) - 1))
            value[place] = data.draw(st.integers(0, 255))
        values.append(bytes(value[: data.draw(st.integers(len(value) // 2, len(value)))]))
    batch = decode(values)
    refused, expected = set(), []
    for offset, value in enumerate(values):
        try:
            expected.extend(samples_of(decode_record(consumed(value, offset)), offset=offset))
        except RejectedRecordError:
            refused.add(offset)
    assert {each.record.offset for each in batch.rejections} == refused
    assert sum(len(run.numbers) for run in batch.runs) == len(values) - len(refused)
    assert [each[:8] for each in samples_in(batch)] == [each[:8] for each in expected]


def test_fields_of_a_newer_writer_do_not_hide_the_rest() -> None:
    sample = pb.Sample(iteration=3, wall_seconds=0.5, compute=pb.ComputeSeconds(forward=0.25))
    value = sample.SerializeToString() + b"\xa2\x06\x02hi"  # field 100
    record = pb.Record(job_id="job", rank=1).SerializeToString() + b"\x42" + bytes([len(value)]) + value
    [arrived] = samples_in(decode([record]))
    assert arrived.wall_seconds == 0.5
    assert frame_of([arrived]).columns.forward_seconds == [0.25]


def test_a_list_of_micro_batches_that_ranks_share_is_there_once() -> None:
    shared = [pb.MicroBatch(index=index, tokens=100 + index, sum_of_squares=7.0) for index in range(3)]
    values = [
        pb.Record(job_id="job", rank=rank, samples=[pb.Sample(iteration=1, micro_batches=shared[: 2 + rank // 4])])
        for rank in range(8)
    ]
    batch = decode([value.SerializeToString() for value in values])
    columns = frame_of(samples_in(batch)).columns
    assert list(columns.workload_sizes) == [2, 3]
    assert list(columns.workload_of) == [0] * 4 + [1] * 4
    assert list(columns.micro_batch_tokens) == [100, 101, 100, 101, 102]


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"{}"])
def test_what_is_no_record_is_refused(value: bytes | None) -> None:
    batch = RecordBatchDecoder().decode([consumed(value)])
    assert len(batch.rejections) == 1
    assert not batch.runs


def test_a_record_under_the_wrong_key_is_refused_however_often_the_job_was_seen() -> None:
    decoder, value = RecordBatchDecoder(), pb.Record(job_id="job", rank=1).SerializeToString()
    assert [len(run.numbers) for run in decoder.decode([consumed(value)] * 2).runs] == [2]
    [rejection] = decoder.decode([consumed(value, key=b"other")]).rejections
    assert rejection.error == "key"


def test_a_sample_longer_than_any_field_of_it_says_is_not_read_beyond_its_end() -> None:
    """Lengths that point behind the record: the numbers of the next one must not be taken for this one's."""
    sample = pb.Sample(iteration=1, compute=pb.ComputeSeconds(forward=1.0)).SerializeToString()
    lying = sample.replace(b"\x2a\x09", b"\x2a\x7f")
    good = pb.Record(job_id="job", rank=1, samples=[pb.Sample(iteration=1, wall_seconds=2.0)]).SerializeToString()
    bad = pb.Record(job_id="job", rank=0).SerializeToString() + b"\x42" + bytes([len(lying)]) + lying
    batch = decode([bad, good])
    assert [each.record.offset for each in batch.rejections] == [0]
    assert [each.wall_seconds for each in samples_in(batch)] == [2.0]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300, 3000])
def test_a_sample_may_have_many_micro_batches(count: int) -> None:
    micro_batches = [pb.MicroBatch(index=index, tokens=index * 37, sum_of_squares=0.5) for index in range(count)]
    sample = pb.Sample(iteration=1, wall_seconds=2.0, micro_batches=micro_batches, gradient_norm=3.0)
    values = [pb.Record(job_id="job", rank=rank, samples=[sample] * 2).SerializeToString() for rank in range(2)]
    batch = decode(values)
    assert not batch.rejections
    for each in samples_in(batch):
        columns = frame_of([each]).columns
        assert list(columns.micro_batch_tokens) == [
            batch.tokens for batch in micro_batches if any(columns.micro_batch_tokens)
        ]
        assert list(columns.gradient_norms) == [3.0]


@pytest.mark.parametrize(
    "kept",
    [
        [pb.MicroBatch(index=-1)],
        [pb.MicroBatch(tokens=-5)],
        [pb.MicroBatch(index=3), pb.MicroBatch(sum_of_squares=math.nan)],
        [pb.MicroBatch()] * 65_537,
    ],
)
def test_hostile_kept_micro_batches_are_refused_and_the_records_beside_them_are_not(kept: list[pb.MicroBatch]) -> None:
    good = [pb.MicroBatch(index=index, tokens=9, sum_of_squares=81.0) for index in range(3)]
    values = [
        pb.Record(
            job_id="job",
            rank=rank,
            samples=[pb.Sample(iteration=1, kept_micro_batches=kept if rank == 2 else good)],
        ).SerializeToString()
        for rank in range(4)
    ]
    batch = decode(values)
    assert [each.record.offset for each in batch.rejections] == [2]
    assert [each.rank for each in samples_in(batch)] == [0, 1, 3]


def test_launchers_events_come_in_order_between_samples() -> None:
    sample = pb.Sample(iteration=1, wall_seconds=2.0)
    death = pb.ProcessEvent(kind=pb.PROCESS_EVENT_KIND_DIED, rank=1)
    sent = [
        pb.Record(job_id="job", rank=0, samples=[sample]),
        pb.Record(job_id="job", rank=-1, events=[death]),
        pb.Record(job_id="job", rank=1, samples=[sample]),
        pb.Record(job_id="other", rank=1, samples=[sample]),
    ]
    records = [
        consumed(record.SerializeToString(), offset, key=record.job_id.encode()) for offset, record in enumerate(sent)
    ]
    runs = RecordBatchDecoder().decode(records).runs
    assert [(run.job_id, run.numbers[0, 0], run.stop_row - run.first_row, len(run.events)) for run in runs] == [
        ("job", 0, 1, 0),
        ("job", -1, 0, 1),
        ("job", 1, 1, 0),
        ("other", 1, 1, 0),
    ]


def fill(message: Message) -> None:
    """Sets every field there is, so that a new one that nobody reads yet shows up here."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            target = getattr(message, field.name)
            fill(target.add() if field.is_repeated else target)
        elif field.is_repeated:
            getattr(message, field.name).extend([1, 2])
        else:
            setattr(message, field.name, "x" if field.type == field.TYPE_STRING else 1)


def test_a_sample_with_every_field_of_the_contract_is_taken_in() -> None:
    sample = pb.Sample()
    fill(sample)
    record = pb.Record(job_id="job", rank=3, samples=[sample, sample])
    batch = decode([record.SerializeToString()])
    assert batch.rejections == []
    assert [each.iteration for each in samples_in(batch)] == [1, 1]


OURS = record_headers(RECORDS, "test")
OTHER_TYPE = ("ce_type", b"other")


@pytest.mark.parametrize(
    "headers",
    [
        OURS,
        [],
        [OURS[4], OURS[0]],
        OURS[:4],
        [*OURS, ("more", b"1")],
        [*OURS, OTHER_TYPE],
        [OTHER_TYPE, *OURS[1:]],
        [*OURS[:4], OTHER_TYPE, OURS[5]],
        [("content-type", b"text/plain"), *OURS[1:]],
        [OURS[0], ("content-type", b"text/plain"), *OURS[2:]],
    ],
)
def test_headers_are_judged_beside_others_as_they_are_alone(headers: list[tuple[str, bytes]]) -> None:
    value = pb.Record(job_id="job", rank=1, samples=[pb.Sample(iteration=1)]).SerializeToString()
    odd = consumed(value, 1)._replace(headers=headers)
    try:
        decode_record(odd)
        expected = []
    except RejectedRecordError as error:
        expected = [(1, error.error, error.reason)]
    batch = RecordBatchDecoder().decode([consumed(value), odd, consumed(value, 2)])
    assert [(each.record.offset, each.error, each.reason) for each in batch.rejections] == expected
    assert len(batch.block) == 3 - len(expected)
