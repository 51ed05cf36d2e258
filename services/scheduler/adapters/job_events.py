"""What the scheduler itself sees of a job's processes, as batches of telemetry: the detector has one stream to read."""

import time
from collections.abc import Callable

from evenkeel.contracts.columns import NO_RANK, SCHEDULER_INCARNATION, tell_process
from evenkeel.contracts.mac import job_key, signed
from evenkeel.contracts.suspicion import Suspicion
from evenkeel.contracts.topics import BATCHES, record_headers
from evenkeel.layouts.codec import to_proto
from evenkeel.services.common.kafka.ports import Producer
from evenkeel.services.common.kafka.records import OutgoingRecord
from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.telemetry.v2.batch_pb2 import Batch

_LONGEST_DETAIL = 500


class JobEvents:
    """Reports about one job, on behalf of no rank. Event loop's thread.

    Args:
        producer: Where batches go.
        job_id: The job.
        job_token: Its token, of which the key is made that signs.
        clock: Unix seconds.
    """

    def __init__(
        self, producer: Producer, job_id: str, job_token: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._producer = producer
        self._job_id = job_id
        self._key = job_key(job_id, job_token)
        self._clock = clock
        self._sequence = 0

    async def stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
        """A process's stream broke and its controller does not answer any more."""
        event = pb.ProcessEvent(kind=pb.PROCESS_EVENT_KIND_STREAM_BROKEN, rank=rank, incarnation=incarnation)
        event.detail = detail[:_LONGEST_DETAIL]
        await self._report(event)

    async def probed(self, asked: Suspicion, seconds: float, peer_seconds: float) -> None:
        """A suspect was probed beside a peer; the shortest repetition took so long on each."""
        event = pb.ProcessEvent(kind=pb.PROCESS_EVENT_KIND_PROBED, rank=asked.rank, incarnation=asked.incarnation)
        event.probe.CopyFrom(to_proto(pb.ProbeReport, asked, seconds=seconds, peer_seconds=peer_seconds))
        await self._report(event)

    async def _report(self, event: pb.ProcessEvent) -> None:
        event.at_unix_seconds = self._clock()
        batch = Batch(events=[event])
        tell_process(
            batch,
            job_id=self._job_id,
            node="scheduler",
            rank=NO_RANK,
            incarnation=SCHEDULER_INCARNATION,
            sequence=self._sequence,
            num_events=1,
        )
        self._sequence += 1
        headers = record_headers(BATCHES, "evenkeel/scheduler")
        value = signed(batch.SerializeToString(), self._key)
        await self._producer.send_all(
            [OutgoingRecord(topic=BATCHES.name, key=self._job_id.encode(), value=value, headers=headers)]
        )
