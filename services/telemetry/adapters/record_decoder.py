"""From a Kafka record to the domain's values, or to the dead letters."""

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from evenkeel.services.common.kafka import ConsumedRecord, RejectedRecordError
from evenkeel.services.telemetry.domain.observed import ArrivedEvent, ArrivedProgress, ArrivedSample, EventKind
from evenkeel.services.telemetry.domain.validate import MAX_RECORD_BYTES, HostileRecordError, check_record
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

EXPECTED_HEADERS = {"content-type": b"application/protobuf", "ce_type": pb.Record.DESCRIPTOR.full_name.encode()}
"""What a record's headers say, if they say it at all."""

_KINDS = {
    pb.PROCESS_EVENT_KIND_STARTED: EventKind.STARTED,
    pb.PROCESS_EVENT_KIND_DIED: EventKind.DIED,
    pb.PROCESS_EVENT_KIND_FINISHED: EventKind.FINISHED,
    pb.PROCESS_EVENT_KIND_STREAM_BROKEN: EventKind.STREAM_BROKEN,
    pb.PROCESS_EVENT_KIND_CONNECTION_LOST: EventKind.CONNECTION_LOST,
}


def check_envelope(record: ConsumedRecord) -> bytes:
    """The record's value, if there is one and its headers do not say that it is something else.

    Raises:
        RejectedRecordError: Otherwise.
    """
    value = record.value
    if value is None:
        raise RejectedRecordError("empty", "no value")
    if len(value) > MAX_RECORD_BYTES:
        raise RejectedRecordError("size", f"{len(value)} bytes, at most {MAX_RECORD_BYTES}")
    headers = dict(record.headers)
    for name, expected in EXPECTED_HEADERS.items():
        content = headers.get(name, expected)
        if content != expected:
            raise RejectedRecordError("version", f"header {name} is {content[:80]!r}, which this version cannot read")
    return value


def decode_record(record: ConsumedRecord) -> pb.Record:
    """The message in a Kafka record.

    Raises:
        RejectedRecordError: It is none, is of another type or version, or says what nobody can have measured.
    """
    value = check_envelope(record)
    try:
        message = pb.Record.FromString(value)
    except DecodeError as error:
        raise RejectedRecordError("malformed", f"not an {pb.Record.DESCRIPTOR.full_name}: {error}") from None
    try:
        check_record(message, key=record.key)
    except HostileRecordError as error:
        raise RejectedRecordError(error.word, str(error)) from None
    return message


def samples_of(record: pb.Record, *, offset: int) -> Iterator[ArrivedSample]:
    """The samples of a checked record, carried as they are."""
    rank, incarnation, node, device = record.rank, record.incarnation, record.node, record.device
    for sample in record.samples:
        yield ArrivedSample(
            rank,
            incarnation,
            node,
            device,
            sample.epoch,
            sample.iteration,
            sample.wall_seconds,
            offset,
            sample,
        )


def newest_progress_of(record: pb.Record) -> ArrivedProgress | None:
    """The newest progress of a checked record; the older ones are of no interest once it is there."""
    return newest_progress(record.rank, record.incarnation, record.progress)


def newest_progress(rank: int, incarnation: int, progress: Sequence[pb.Progress]) -> ArrivedProgress | None:
    """The newest of some checked progress reports, which it carries as bytes; None if there is none."""
    if not progress:
        return None
    newest = progress[-1]
    raw = newest.SerializeToString()
    return ArrivedProgress(rank, incarnation, newest.operation_count, newest.seconds_in_operation, raw)


def event_from_proto(event: pb.ProcessEvent) -> ArrivedEvent:
    """One event of a checked record; a kind that this version does not know is passed on as it is."""
    kind = _KINDS.get(event.kind, EventKind.OTHER)
    return ArrivedEvent(event.at_unix_seconds, kind, event.rank, event.incarnation, event)
