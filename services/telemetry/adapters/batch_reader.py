"""From a fetch of Kafka records to what each job brought, or to the dead letters.

Whether a job has signed it is asked of each record; then the batches of a job are joined byte for byte and parsed once.
Only where that makes no sense each is looked at by itself, and the guilty one is buried alone: whoever spoils a fetch
spoils nothing but its own job's speed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from evenkeel.contracts.batches import read_batches
from evenkeel.contracts.mac import UnbelievedError
from evenkeel.services.common.kafka import ConsumedRecord, Rejection
from evenkeel.services.telemetry.domain.observed import Arrived, ArrivedEvent, ArrivedProgress, EventKind
from evenkeel.services.telemetry.domain.validate import (
    MAX_BATCH_BYTES,
    check_batches,
    check_messages,
    check_speaker,
)
from evenkeel.telemetry.v2 import batch_pb2, process_pb2

_EXPECTED_HEADERS = {"content-type": b"application/protobuf", "ce_type": batch_pb2.Batch.DESCRIPTOR.full_name.encode()}
_KINDS = {
    process_pb2.ProcessEventKind.Value(f"PROCESS_EVENT_KIND_{kind.name}"): kind
    for kind in EventKind
    if kind is not EventKind.OTHER
}

Believe = Callable[[bytes, bytes], bytes]
"""From a record's key and value to the bytes of its batch alone; raises UnbelievedError where it is not believed."""


class ArrivedJob(NamedTuple):
    """What a fetch brought of one job.

    Attributes:
        job_id: The job.
        records: The records that it came in, in order, none of them refused.
        arrived: What they say.
        tellers: Which record tells of each event.
    """

    job_id: str
    records: list[ConsumedRecord]
    arrived: Arrived
    tellers: list[int]


class _Signed(NamedTuple):
    """A record, and the bytes of its batch, which its job has signed if it must."""

    record: ConsumedRecord
    batch: bytes


def read_fetch(records: Sequence[ConsumedRecord], believe: Believe) -> tuple[list[ArrivedJob], list[Rejection]]:
    """What records say, job by job, and those that cannot be believed."""
    by_job: dict[bytes, list[_Signed]] = {}
    jobs: list[ArrivedJob] = []
    rejections: list[Rejection] = []
    for record in records:
        try:
            signed = _Signed(record, believe(record.key or b"", _value(record)))
        except UnbelievedError as error:
            rejections.append(_rejection(record, error))
        else:
            by_job.setdefault(record.key or b"", []).append(signed)
    for of_job in by_job.values():
        try:
            jobs.append(_read(of_job))
            continue
        except UnbelievedError as error:
            believed = []
            for each in of_job:
                try:
                    _read([each])
                    believed.append(each)
                except UnbelievedError as its_error:
                    rejections.append(_rejection(each.record, its_error))
            if len(believed) == len(of_job):  # each for itself makes sense, and not beside the others
                rejections += [_rejection(each.record, error) for each in of_job]
            elif believed:
                jobs.append(_read(believed))
    return jobs, rejections


def event_from_proto(event: process_pb2.ProcessEvent) -> ArrivedEvent:
    """One checked event; a kind that this version does not know is passed on as it is."""
    kind = _KINDS.get(event.kind, EventKind.OTHER)
    return ArrivedEvent(event.at_unix_seconds, kind, event.rank, event.incarnation, event)


def _rejection(record: ConsumedRecord, error: UnbelievedError) -> Rejection:
    return Rejection(record=record, error=error.word, reason=str(error))


def _read(signed: Sequence[_Signed]) -> ArrivedJob:
    """What records of one key say.

    Raises:
        UnbelievedError: Not all of it can be believed.
    """
    try:
        message = batch_pb2.Batch.FromString(b"".join([each.batch for each in signed]))
    except DecodeError as error:
        name = batch_pb2.Batch.DESCRIPTOR.full_name
        raise UnbelievedError("malformed", f"not an {name}: {error}") from None
    try:
        batches = read_batches(message)
    except ValueError as error:
        raise UnbelievedError("columns", str(error)) from None
    check_batches(batches)
    check_messages(message.progress, message.events)
    ranks, incarnations = batches.rank.tolist(), batches.incarnation.tolist()
    events = [event_from_proto(event) for event in message.events]
    tellers = np.repeat(np.arange(len(batches)), batches.num_events).tolist()
    for teller, told in zip(tellers, events, strict=True):
        check_speaker(ranks[teller], incarnations[teller], told)
    records = [each.record for each in signed]
    if len(batches) != len(records):
        raise UnbelievedError("columns", f"{len(batches)} batches in {len(records)} records")
    job_id, key = batches.job_id[0], records[0].key or b""
    if set(batches.job_id) != {job_id} or job_id.encode() != key:
        raise UnbelievedError("key", f"key {key[:40]!r} is not the job id {job_id!r}")
    owners = np.repeat(np.arange(len(batches)), batches.num_progress).tolist()
    # The older reports of a process are of no interest once the newest is there.
    newest = dict(zip(owners, message.progress, strict=True))
    reports = {(ranks[owner], incarnations[owner]): each for owner, each in newest.items()}
    arrived = Arrived(
        batches=batches,
        offsets=np.array([record.offset for record in records]),
        progress=[ArrivedProgress(*process, _copied(report)) for process, report in reports.items()],
        events=events,
    )
    return ArrivedJob(job_id, records, arrived, tellers)


def _value(record: ConsumedRecord) -> bytes:
    """A record's bytes, if there are any and the headers do not say that they are no batch.

    Raises:
        UnbelievedError: Otherwise.
    """
    value = record.value
    if not value:
        raise UnbelievedError("empty", "no value")
    if len(value) > MAX_BATCH_BYTES:
        raise UnbelievedError("size", f"{len(value)} bytes, at most {MAX_BATCH_BYTES}")
    for name, content in record.headers:
        if content != _EXPECTED_HEADERS.get(name, content):
            raise UnbelievedError("version", f"header {name} is {content[:80]!r}, which this version cannot read")
    return value


def _copied(report: process_pb2.Progress) -> process_pb2.Progress:
    """A message of its own: one that is part of another keeps all of that in memory."""
    copy = process_pb2.Progress()
    copy.CopyFrom(report)
    return copy
