"""The launcher and the scheduler both speak under no rank: their records must not be taken for one another's."""

from collections.abc import Sequence

import pytest

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.headers import record_headers
from evenkeel.contracts.speakers import LAUNCHER_INCARNATION, NO_RANK
from evenkeel.contracts.topics import BATCHES, RECORDS
from evenkeel.services.common.kafka.records import ConsumedRecord, OutgoingRecord, Partition
from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.telemetry.adapters.batch_reader import read_fetch
from evenkeel.services.telemetry.domain.sequences import BatchSequences
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.trainer_sdk.emit.record_builder import RecordBuilder, Source


class Kept:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []

    async def send_all(self, records: Sequence[OutgoingRecord]) -> None:
        self.records += records


def batches_of(outgoing: Sequence[OutgoingRecord]) -> Batches:
    records = [
        ConsumedRecord(Partition(BATCHES.name, 0), offset, 0.0, one.key, one.value, one.headers)
        for offset, one in enumerate(outgoing)
    ]
    [job], rejections = read_fetch(records)
    assert not rejections
    return job.arrived.batches


@pytest.mark.asyncio
async def test_what_launcher_and_scheduler_say_is_counted_apart() -> None:
    launcher = RecordBuilder(Source(job_id="job", rank=NO_RANK, incarnation=LAUNCHER_INCARNATION, node="node-0"))
    producer = Kept()
    scheduler = JobEvents(producer, "job", clock=lambda: 5.0)
    for rank in range(3):
        await scheduler.stream_broken(rank, 0, "it broke")
    told = [launcher.build(events=[pb.ProcessEvent(kind=pb.PROCESS_EVENT_KIND_DIED, rank=rank)]) for rank in range(9)]
    first, *_, last = [
        OutgoingRecord(
            topic=RECORDS.name, key=b"job", value=record.SerializeToString(), headers=record_headers(RECORDS, "test")
        )
        for record in told
    ]
    sequences = BatchSequences()
    # Of the launcher's nine records seven are lost, and the scheduler's three lie between the two that are not.
    missing, _ = sequences.add(batches_of([first, *producer.records, last]))
    assert missing == 7


@pytest.mark.asyncio
async def test_a_stream_that_broke_is_told_of_the_rank_and_the_process_that_it_led_to() -> None:
    producer = Kept()
    await JobEvents(producer, "job", clock=lambda: 5.0).stream_broken(6, 2, "x" * 5000)
    (event,) = Batch.FromString(producer.records[0].value or b"").events
    assert (event.rank, event.incarnation, event.at_unix_seconds) == (6, 2, 5.0)
    assert len(event.detail) < 5000
