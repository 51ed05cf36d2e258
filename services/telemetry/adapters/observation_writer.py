"""From observations to Kafka records, each with the offset of the input that it comes from."""

from collections.abc import Iterator, Sequence

from evenkeel.contracts.frames import Frames, write_frames
from evenkeel.contracts.topics import FRAMES, record_headers
from evenkeel.services.common.kafka import ConsumedRecord, OutgoingRecord
from evenkeel.services.telemetry.domain.observed import ArrivedEvent, Numbered, Picture
from evenkeel.telemetry.v2 import frames_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2

INPUT_OFFSET_HEADER = "evenkeel-input-offset"
SOURCE = "evenkeel/telemetry"

# Frames that close together after an outage may be too much for one record.
_MOST_BYTES = FRAMES.max_message_bytes // 2


def observation_records(job_id: str, numbered: Sequence[Numbered], *, input_offset: int) -> list[OutgoingRecord]:
    """The Kafka records of a job's observations.

    Args:
        job_id: The job, which is the key.
        numbered: What was observed.
        input_offset: Offset of the newest input record taken in by now.
    """
    offset = (INPUT_OFFSET_HEADER, str(input_offset).encode())
    return [
        OutgoingRecord(
            topic=FRAMES.name,
            key=job_id.encode(),
            value=value,
            headers=[*record_headers(FRAMES, SOURCE, event_id=f"{job_id}/{event_id}"), offset],
        )
        for each in numbered
        for event_id, value in _messages(job_id, each.sequence, each.observed)
    ]


def input_offset_of(record: ConsumedRecord) -> int:
    """What :func:`observation_records` noted; -1 for a record that it did not write."""
    for name, value in record.headers:
        if name == INPUT_OFFSET_HEADER and value.isdigit():
            return int(value)
    return -1


def _messages(job_id: str, sequence: int, observed: Frames | Picture | ArrivedEvent) -> Iterator[tuple[str, bytes]]:
    """Event id and bytes of each message."""
    message = pb.Observation(job_id=job_id, sequence=sequence)
    if isinstance(observed, Frames):
        write_frames(message.frames, observed)
        event_id = f"frames/{observed.epoch}/{observed.iteration[0]}-{observed.iteration[-1]}"
        if len(observed) > 1 and message.ByteSize() > _MOST_BYTES:
            middle = len(observed) // 2
            yield from _messages(job_id, sequence, observed.part(0, middle))
            yield from _messages(job_id, sequence + middle, observed.part(middle, len(observed)))
            return
    elif isinstance(observed, Picture):
        _fill_picture(message.liveness, observed)
        event_id = f"picture/{sequence}"
    else:
        message.liveness.at_unix_seconds = observed.at_seconds
        message.liveness.event.CopyFrom(observed.payload)
        event_id = f"{observed.kind}/{observed.rank}/{observed.incarnation}/{observed.payload.at_unix_seconds}"
    yield event_id, message.SerializeToString()


def _fill_picture(liveness: pb.Liveness, picture: Picture) -> None:
    liveness.at_unix_seconds = picture.at_seconds
    liveness.seconds_without_progress = picture.seconds_without_progress
    for state in picture.ranks:
        report = state.report or process_pb2.Progress()
        for name in ("rank", "incarnation", "seconds_since_heard", "seconds_since_moved"):
            getattr(liveness, name).append(getattr(state, name))
        for name in ("iteration", "epoch", "operation_count", "operation", "seconds_in_operation"):
            getattr(liveness, name).append(getattr(report, name))
        liveness.read_at_unix_seconds.append(report.at_unix_seconds)
        liveness.num_waiting_for.append(len(report.waiting_for))
        liveness.waiting_for.extend(report.waiting_for)
