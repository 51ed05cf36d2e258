"""Finds out, from the end of the observations' partition, what was said before this process started.

Observations carry the offset of the input that they come from. Reading back to the first one that is older than where
we start to read again gives exactly those that a replay would repeat, and what is needed to go on after them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from evenkeel.contracts.frames import read_frames
from evenkeel.contracts.topics import FRAMES
from evenkeel.services.common.kafka import ConsumedRecord, Partition
from evenkeel.services.telemetry.adapters.batch_reader import event_from_proto
from evenkeel.services.telemetry.adapters.observation_writer import input_offset_of
from evenkeel.services.telemetry.adapters.tail import Tail
from evenkeel.services.telemetry.domain.observed import JobMemory
from evenkeel.telemetry.v2 import frames_pb2 as pb


@dataclass(slots=True)
class PartitionMemory:
    """What was said in one partition.

    Attributes:
        jobs: By job id.
        until_offset: Newest input offset of anything that was said.
        complete: Whether that is all that was ever said there: a job that is not in it is new.
    """

    jobs: dict[str, JobMemory] = field(default_factory=dict)
    until_offset: int = -1
    complete: bool = True


async def remember(tail: Tail, starts: Mapping[int, int]) -> dict[int, PartitionMemory]:
    """What was said in partitions of the observations, by their numbers.

    Args:
        tail: Reads it.
        starts: Where reading of the input starts again, by number: both have the same keys and as many partitions.
    """

    def enough(record: ConsumedRecord) -> bool:
        return input_offset_of(record) < starts[record.partition.number]

    said = await tail.read_back([Partition(FRAMES.name, number) for number in starts], enough=enough)
    return {number: _memory(said.get(Partition(FRAMES.name, number), ())) for number in starts}


def _memory(records: Sequence[ConsumedRecord]) -> PartitionMemory:
    memory = PartitionMemory(complete=not records or records[0].offset == 0)
    for record in records:
        if record.value is None:
            continue
        try:
            message = pb.Observation.FromString(record.value)
            frames = read_frames(message.frames) if message.HasField("frames") else None
        except (DecodeError, ValueError):  # not ours: nobody else writes here, and whoever reads it counts it
            continue
        memory.until_offset = max(memory.until_offset, input_offset_of(record))
        job = memory.jobs.setdefault(message.job_id, JobMemory())
        job.next_sequence = max(job.next_sequence, message.sequence + (1 if frames is None else len(frames)))
        if frames is not None:
            job.last_frames = frames
        elif message.liveness.HasField("event"):
            job.events.append(event_from_proto(message.liveness.event))
    return memory
