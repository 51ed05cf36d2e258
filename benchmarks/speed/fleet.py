"""Jobs that tell of two iterations a second until each has lost a rank, and how long the verdicts about that take."""

import asyncio
import time
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.speed.jobs import SyntheticJob
from evenkeel.contracts.mac import job_key, signed
from evenkeel.contracts.topics import BATCHES, record_headers
from evenkeel.detector.v1 import detector_pb2
from evenkeel.simulator.live.rank_batches import add_news, empty_batch
from evenkeel.telemetry.v2 import process_pb2

NUM_RANKS, LOST_RANK = 8, 3
_INTERVAL_SECONDS, _LONGEST_SECONDS = 0.5, 120.0


class Fleet:
    """Some jobs and one producer.

    Args:
        producer: Sends for all of them.
        num_jobs: How many.
        tokens: They sign what they tell, each by the key of its token, which is ``token-of-`` its id.
    """

    def __init__(self, producer: AIOKafkaProducer, num_jobs: int, *, tokens: bool = False) -> None:
        self._producer = producer
        self._jobs = [SyntheticJob(f"quiet-{uuid.uuid4().hex[:8]}", NUM_RANKS, seed=seed) for seed in range(num_jobs)]
        self._keys = {job.job_id: job_key(job.job_id, f"token-of-{job.job_id}" if tokens else "") for job in self._jobs}
        self.job_ids = [job.job_id for job in self._jobs]
        self._iteration = 0

    async def iterate(self, num_iterations: int) -> None:
        """So many iterations of all."""
        due_seconds = time.monotonic()
        for _ in range(num_iterations):
            for job in self._jobs:
                for value in job.records(range(self._iteration, self._iteration + 1)):
                    await self._send(job.job_id, value)
            self._iteration += 1
            due_seconds += _INTERVAL_SECONDS
            await asyncio.sleep(max(0.0, due_seconds - time.monotonic()))

    async def lose_a_rank(self) -> None:
        """Each job's launcher tells of a death; returns when Kafka has it."""
        kind = process_pb2.PROCESS_EVENT_KIND_DIED
        died = process_pb2.ProcessEvent(kind=kind, rank=LOST_RANK, at_unix_seconds=time.time())
        for job_id in self.job_ids:
            news = add_news(empty_batch(job_id=job_id, rank=-1), events=[died])
            await self._send(job_id, news.SerializeToString())
        await self._producer.flush()

    async def delays(self, reader: AIOKafkaConsumer) -> tuple[list[float], int]:
        """Seconds from now to the verdict about each death, and how many verdicts accuse anybody else in these jobs."""
        began_seconds, found, num_wrong = time.monotonic(), dict[str, float](), 0
        async with asyncio.timeout(_LONGEST_SECONDS):
            while len(found) < len(self.job_ids):
                for records in (await reader.getmany(timeout_ms=20)).values():
                    for verdict in (detector_pb2.Verdict.FromString(record.value) for record in records):
                        if verdict.job_id not in self._keys:
                            continue
                        if [culprit.rank for culprit in verdict.culprits] != [LOST_RANK]:
                            num_wrong += 1
                        elif verdict.kind == detector_pb2.VERDICT_KIND_FAIL_STOP:
                            found.setdefault(verdict.job_id, time.monotonic() - began_seconds)
        return list(found.values()), num_wrong

    async def _send(self, job_id: str, value: bytes) -> None:
        await self._producer.send(
            BATCHES.name,
            signed(value, self._keys[job_id]),
            key=job_id.encode(),
            headers=record_headers(BATCHES, "benchmark"),
        )
