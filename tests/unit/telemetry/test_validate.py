import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.contracts.headers import record_headers
from evenkeel.contracts.topics import RECORDS, VERDICTS
from evenkeel.services.common.kafka import ConsumedRecord, Partition, RejectedRecordError
from evenkeel.services.telemetry.adapters.record_decoder import decode_record
from evenkeel.telemetry.v1 import telemetry_pb2 as pb


def consumed(
    value: bytes | None, *, key: bytes | None = b"job", headers: list[tuple[str, bytes]] | None = None
) -> ConsumedRecord:
    return ConsumedRecord(
        partition=Partition(RECORDS.name, 0),
        offset=0,
        timestamp_seconds=0.0,
        key=key,
        value=value,
        headers=headers or [],
    )


def good() -> pb.Record:
    record = pb.Record(job_id="job", rank=3, incarnation=1, node="node", device="device")
    record.samples.add(
        iteration=5,
        wall_seconds=0.5,
        compute=pb.ComputeSeconds(forward=0.1),
        micro_batches=[pb.MicroBatch(tokens=10, sum_of_squares=100.0)],
        kept_micro_batches=[pb.MicroBatch(index=2, tokens=20, sum_of_squares=400.0)],
        loss=math.nan,
    )
    record.progress.add(iteration=-1, operation_count=7, operation="forward")
    return record


def refusal(record: pb.Record) -> str:
    with pytest.raises(RejectedRecordError) as caught:
        decode_record(consumed(record.SerializeToString()))
    return caught.value.error


def test_a_good_record_passes_and_a_loss_that_is_no_number_is_news_not_poison() -> None:
    assert decode_record(consumed(good().SerializeToString(), headers=record_headers(RECORDS, "test"))) == good()


@pytest.mark.parametrize(
    "field",
    ["wall_seconds", "started_at_unix_seconds", "compute.forward", "waiting.vote", "position.backward_multiple"],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-9, 1e40])
def test_a_measure_that_nobody_can_have_taken_is_refused(field: str, value: float) -> None:
    record = good()
    target = record.samples[0]
    *path, name = field.split(".")
    for step in path:
        target = getattr(target, step)
    setattr(target, name, value)
    assert refusal(record) == "value"


def test_a_record_under_another_jobs_key_is_refused() -> None:
    with pytest.raises(RejectedRecordError, match="not the job id"):
        decode_record(consumed(good().SerializeToString(), key=b"other"))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda record: setattr(record, "job_id", ""), "job_id"),
        (lambda record: setattr(record, "rank", -2), "value"),
        (lambda record: setattr(record, "rank", 2**31 - 1), "value"),
        (lambda record: setattr(record, "rank", -1), "rank"),
        (lambda record: setattr(record, "incarnation", -1), "value"),
        (lambda record: setattr(record, "node", "x" * 5000), "size"),
        (lambda record: setattr(record, "device", "a\0b"), "text"),
        (lambda record: setattr(record.samples[0], "iteration", -1), "value"),
        (lambda record: setattr(record.samples[0], "epoch", 2**60), "value"),
        (lambda record: setattr(record.samples[0].micro_batches[0], "tokens", -1), "value"),
        (lambda record: setattr(record.samples[0].micro_batches[0], "sum_of_squares", math.nan), "value"),
        (lambda record: setattr(record.samples[0].kept_micro_batches[0], "index", -1), "value"),
        (lambda record: setattr(record.samples[0].kept_micro_batches[0], "sum_of_squares", math.inf), "value"),
        (lambda record: record.samples[0].kept_micro_batches.extend([pb.MicroBatch()] * 65_536), "size"),
        (lambda record: record.progress.extend([pb.Progress()] * 5000), "size"),
    ],
)
def test_each_hostile_field_is_named(change: object, word: str) -> None:
    record = good()
    assert callable(change)
    change(record)
    assert refusal(record) == word


def test_another_type_or_version_is_refused_by_its_headers() -> None:
    for headers in (record_headers(VERDICTS, "test"), [("content-type", b"application/json")]):
        with pytest.raises(RejectedRecordError) as caught:
            decode_record(consumed(good().SerializeToString(), headers=headers))
        assert caught.value.error == "version"


def test_no_value_and_too_much_of_it_are_refused() -> None:
    for value in (None, b"\0" * (8 * 1024 * 1024 + 1)):
        with pytest.raises(RejectedRecordError):
            decode_record(consumed(value))


@given(st.binary(max_size=300))
def test_no_bytes_do_anything_but_pass_or_be_refused(value: bytes) -> None:
    with contextlib.suppress(RejectedRecordError):
        assert decode_record(consumed(value)).job_id == "job"


@given(st.data())
def test_a_good_record_cut_or_flipped_anywhere_passes_or_is_refused(data: st.DataObject) -> None:
    value = bytearray(good().SerializeToString())
    position = data.draw(st.integers(0, len(value) - 1))
    value[position] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(value)))
    with contextlib.suppress(RejectedRecordError):
        assert decode_record(consumed(bytes(value[:cut]))).job_id == "job"
