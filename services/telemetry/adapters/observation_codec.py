"""From the domain's observations to Kafka records, and back as far as a restart needs.

Every record says in the header ``evenkeel-input-offset`` which offset of the input partition had been taken in when it
was made: so a restart finds what has been said already, and does not say it again.
"""

from collections.abc import Sequence

from evenkeel.contracts.headers import record_headers
from evenkeel.contracts.topics import OBSERVATIONS
from evenkeel.services.common.kafka import ConsumedRecord, OutgoingRecord
from evenkeel.services.telemetry.adapters.frame_writer import frame_observation
from evenkeel.services.telemetry.adapters.run_writer import in_runs
from evenkeel.services.telemetry.domain.observed import ArrivedSample, ClosedFrame, Numbered, Picture
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

INPUT_OFFSET_HEADER = "evenkeel-input-offset"
SOURCE = "evenkeel/telemetry"


def observation_records(job_id: str, numbered: Sequence[Numbered], *, input_offset: int) -> list[OutgoingRecord]:
    """The Kafka records of a job's observations: one each, but for frames that are told together.

    Args:
        job_id: The job, which is the key.
        numbered: What was observed.
        input_offset: Offset of the newest input record taken in by now.
    """
    records = []
    for told, value in in_runs(job_id, numbered):
        if value:
            first, last = told[0].sequence, told[-1].sequence
            records.append(_record(job_id, value, f"{job_id}/frames/{first}-{last}", input_offset))
        else:
            records.append(observation_record(job_id, told[0], input_offset=input_offset))
    return records


def observation_record(job_id: str, numbered: Numbered, *, input_offset: int) -> OutgoingRecord:
    """The Kafka record of one observation.

    Args:
        job_id: The job, which is the key.
        numbered: What was observed.
        input_offset: Offset of the newest input record taken in by now.
    """
    observed = numbered.observed
    if isinstance(observed, ClosedFrame):
        value = frame_observation(job_id, numbered.sequence, observed)
        event_id = f"{job_id}/frame/{observed.epoch}/{observed.iteration}"
    else:
        message = pb.Observation(job_id=job_id, sequence=numbered.sequence)
        if isinstance(observed, Picture):
            _fill_picture(message.liveness, observed)
            event_id = f"{job_id}/picture/{numbered.sequence}"
        else:
            message.liveness.at_unix_seconds = observed.at_seconds
            message.liveness.event.CopyFrom(observed.payload)
            event_id = f"{job_id}/{observed.kind}/{observed.rank}/{observed.incarnation}/{observed.at_seconds}"
        value = message.SerializeToString()
    return _record(job_id, value, event_id, input_offset)


def _record(job_id: str, value: bytes, event_id: str, input_offset: int) -> OutgoingRecord:
    headers = record_headers(OBSERVATIONS, SOURCE, event_id=event_id)
    return OutgoingRecord(
        topic=OBSERVATIONS.name,
        key=job_id.encode(),
        value=value,
        headers=[*headers, (INPUT_OFFSET_HEADER, str(input_offset).encode())],
    )


def input_offset_of(record: ConsumedRecord) -> int:
    """What :func:`observation_record` noted; -1 for a record that it did not write."""
    for name, value in record.headers:
        if name == INPUT_OFFSET_HEADER and value.isdigit():
            return int(value)
    return -1


def frame_from_proto(frame: pb.Frame) -> ClosedFrame:
    """A frame without its payloads: enough to go on after it."""
    columns = frame.columns
    names, size = columns.names, len(columns.ranks)
    entries = [
        ArrivedSample(rank, incarnation, names[node], names[device], frame.epoch, frame.iteration, wall, -1, None)
        for rank, incarnation, node, device, wall in zip(
            columns.ranks,
            columns.incarnations or [0] * size,
            columns.node_of or [0] * size,
            columns.device_of or [0] * size,
            columns.wall_seconds or [0.0] * size,
            strict=True,
        )
    ]
    for entry in frame.entries:
        at = entry.sample
        entries.append(
            ArrivedSample(
                entry.rank,
                entry.incarnation,
                entry.node,
                entry.device,
                at.epoch,
                at.iteration,
                at.wall_seconds,
                -1,
                None,
            )
        )
    return ClosedFrame(
        epoch=frame.epoch,
        iteration=frame.iteration,
        entries=tuple(entries),
        missing_ranks=tuple(frame.missing_ranks),
        closed_at_seconds=frame.closed_at_unix_seconds,
        last_sample_at_seconds=frame.last_sample_at_unix_seconds,
    )


def last_frame_from_proto(run: pb.FrameRun) -> ClosedFrame:
    """The last frame of a run without its payloads, which is what there is to go on after."""
    size, walls = len(run.columns.ranks), run.columns.wall_seconds
    frame = pb.Frame(
        iteration=run.iterations[-1],
        epoch=run.epoch,
        closed_at_unix_seconds=run.closed_at_unix_seconds[-1],
        last_sample_at_unix_seconds=run.last_sample_at_unix_seconds[-1],
        columns=pb.FrameColumns(wall_seconds=walls[-size:] if size else ()),
    )
    for name in ("names", "ranks", "incarnations", "node_of", "device_of"):
        getattr(frame.columns, name).extend(getattr(run.columns, name))
    return frame_from_proto(frame)


def _fill_picture(liveness: pb.Liveness, picture: Picture) -> None:
    liveness.at_unix_seconds = picture.at_seconds
    liveness.seconds_without_progress = picture.seconds_without_progress
    for state in picture.ranks:
        liveness.progress.add(
            rank=state.rank,
            incarnation=state.incarnation,
            progress=None if state.payload is None else pb.Progress.FromString(state.payload),
            seconds_since_heard=state.seconds_since_heard,
            seconds_since_moved=state.seconds_since_moved,
        )
