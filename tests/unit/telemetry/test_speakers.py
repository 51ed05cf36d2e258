"""The launcher and the scheduler both speak under no rank: their records must not be taken for one another's."""

from collections.abc import Sequence

import pytest

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.columns import LAUNCHER_INCARNATION, NO_RANK
from evenkeel.contracts.mac import job_key, verified, without_signature
from evenkeel.contracts.topics import BATCHES, record_headers
from evenkeel.services.common.kafka.records import ConsumedRecord, OutgoingRecord, Partition
from evenkeel.services.scheduler.adapters.job_events import JobEvents
from evenkeel.services.telemetry.adapters.batch_reader import read_fetch
from evenkeel.services.telemetry.domain.sequences import BatchSequences
from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.trainer_sdk.emit.batch import BatchBuilder, Source


class Kept:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    async def send_all(self, records: Sequence[OutgoingRecord]) -> None:
        self.values += [record.value or b"" for record in records]


def batches_of(values: Sequence[bytes]) -> Batches:
    records = [
        ConsumedRecord(
            partition=Partition(BATCHES.name, 0),
            offset=offset,
            timestamp_seconds=0.0,
            key=b"job",
            value=value,
            headers=record_headers(BATCHES, "test"),
        )
        for offset, value in enumerate(values)
    ]
    [job], rejections = read_fetch(records, lambda _, value: without_signature(value))
    assert not rejections
    return job.arrived.batches


@pytest.mark.asyncio
async def test_what_launcher_and_scheduler_say_is_counted_apart() -> None:
    launcher = BatchBuilder(Source(job_id="job", rank=NO_RANK, incarnation=LAUNCHER_INCARNATION, node="node-0"))
    producer = Kept()
    scheduler = JobEvents(producer, "job", "a-token-of-this-job", clock=lambda: 5.0)
    for rank in range(3):
        await scheduler.stream_broken(rank, 0, "it broke")
    dead = [pb.ProcessEvent(kind=pb.PROCESS_EVENT_KIND_DIED, rank=rank) for rank in range(9)]
    first, *_, last = [batch.SerializeToString() for each in dead for batch in launcher.build(events=[each])]
    sequences = BatchSequences()
    # Of the launcher's nine records seven are lost, and the scheduler's three lie between the two that are not.
    missing, _ = sequences.add(batches_of([first, *producer.values, last]))
    assert missing == 7


def test_the_launchers_of_several_hosts_are_believed_and_counted_apart() -> None:
    told = []
    for host in (0, 1):
        launcher = BatchBuilder(
            Source(job_id="job", rank=NO_RANK, incarnation=LAUNCHER_INCARNATION + host, node=f"node-{host}")
        )
        dead = [pb.ProcessEvent(kind=pb.PROCESS_EVENT_KIND_DIED, rank=3 * host + rank) for rank in range(3)]
        told.append([batch.SerializeToString() for each in dead for batch in launcher.build(events=[each])])
    first, second = told
    # The first host's middle record is lost, and the second's have its number.
    missing, _ = BatchSequences().add(batches_of([first[0], *second, first[2]]))
    assert missing == 1


@pytest.mark.asyncio
async def test_a_stream_that_broke_is_told_of_the_rank_and_the_process_that_it_led_to() -> None:
    producer = Kept()
    await JobEvents(producer, "job", "a-token-of-this-job", clock=lambda: 5.0).stream_broken(6, 2, "x" * 5000)
    key = job_key("job", "a-token-of-this-job")
    assert key is not None
    (event,) = Batch.FromString(verified(producer.values[0], key)).events
    assert (event.rank, event.incarnation, event.at_unix_seconds) == (6, 2, 5.0)
    assert len(event.detail) < 5000
