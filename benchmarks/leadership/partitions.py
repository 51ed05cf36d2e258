"""How late verdicts are when one of two dies: ``python -m benchmarks.leadership.partitions``.

Two telemetry services and two detectors on a Kafka and a PostgreSQL of their own share the partitions of some jobs. One
is killed (SIGKILL), and at that moment the launcher of each job tells of a dead rank. Measured is how long until
the verdict about it is in a reader's hands, of the job that waits longest; beside it, the same with nobody killed.
Prints a table, then JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.speed.jobs import SyntheticJob
from benchmarks.speed.live import Servers, Services, running_services, servers
from evenkeel.contracts.headers import record_headers
from evenkeel.contracts.topics import BATCHES, VERDICTS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.simulator.live.rank_batches import add_news, empty_batch
from evenkeel.telemetry.v2 import process_pb2

COLUMNS = ("killed", "runs", "verdicts", "p50_seconds", "max_seconds")
_LONGEST_SECONDS = 60.0
_INTERVAL_SECONDS = 0.5
_PLACES = {"nobody": None, "telemetry": 0, "detector": 1}


class Fleet:
    """Jobs that tell of an iteration twice a second, until each has lost a rank."""

    def __init__(self, producer: AIOKafkaProducer, num_jobs: int) -> None:
        self._producer = producer
        self._jobs = [SyntheticJob(f"shared-{uuid.uuid4().hex[:8]}", 8, seed=seed) for seed in range(num_jobs)]
        self.job_ids = {job.job_id for job in self._jobs}
        self._iteration = 0

    async def iterate(self) -> None:
        """One iteration of all."""
        for job in self._jobs:
            for value in job.records(range(self._iteration, self._iteration + 1)):
                await self._send(job.job_id, value)
        self._iteration += 1

    async def lose_a_rank(self) -> None:
        """Each job's launcher tells of a death."""
        died = process_pb2.ProcessEvent(kind=process_pb2.PROCESS_EVENT_KIND_DIED, rank=3, at_unix_seconds=time.time())
        for job in self._jobs:
            await self._send(
                job.job_id, add_news(empty_batch(job_id=job.job_id, rank=-1), events=[died]).SerializeToString()
            )
        await self._producer.flush()

    async def _send(self, job_id: str, value: bytes) -> None:
        await self._producer.send(
            BATCHES.name, value, key=job_id.encode(), headers=record_headers(BATCHES, "benchmark")
        )


async def verdict_delays(at: Servers, folder: Path, killed: str, num_jobs: int, session_seconds: float) -> list[float]:
    """Seconds from the news of each job's death to the verdict about it."""
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_services(at, folder, session_seconds, instance="first"))
        await stack.enter_async_context(running_services(at, folder, session_seconds, instance="second"))
        producer = AIOKafkaProducer(bootstrap_servers=at.kafka, linger_ms=5)
        await producer.start()
        stack.push_async_callback(producer.stop)
        reader = AIOKafkaConsumer(VERDICTS.name, bootstrap_servers=at.kafka, enable_auto_commit=False)
        await reader.start()
        stack.push_async_callback(reader.stop)
        fleet = Fleet(producer, num_jobs)
        for _ in range(20):
            await fleet.iterate()
            await asyncio.sleep(_INTERVAL_SECONDS)
        await reader.getmany(timeout_ms=0)
        _kill(first, killed)
        began_seconds = time.monotonic()
        await fleet.lose_a_rank()
        return await _until_judged(reader, fleet, began_seconds)


def _kill(services: Services, killed: str) -> None:
    place = _PLACES[killed]
    if place is not None:
        services.processes[place].send_signal(signal.SIGKILL)


async def _until_judged(reader: AIOKafkaConsumer, fleet: Fleet, began_seconds: float) -> list[float]:
    delays: dict[str, float] = {}
    async with asyncio.timeout(_LONGEST_SECONDS):
        while set(delays) != fleet.job_ids:
            for records in (await reader.getmany(timeout_ms=20)).values():
                for record in records:
                    verdict = detector_pb2.Verdict.FromString(record.value)
                    if verdict.job_id in fleet.job_ids and verdict.kind == detector_pb2.VERDICT_KIND_FAIL_STOP:
                        delays.setdefault(verdict.job_id, time.monotonic() - began_seconds)
    return list(delays.values())


async def measure(at: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    for killed in _PLACES:
        runs = []
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="partitions-") as folder:
                runs.append(await verdict_delays(at, Path(folder), killed, options.jobs, options.session_seconds))
        rows.append(
            {
                "killed": killed,
                "runs": options.runs,
                "verdicts": sum(map(len, runs)),
                "p50_seconds": round(median(each for run in runs for each in run), 2),
                "max_seconds": round(max(map(max, runs)), 2),
            }
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--session-seconds", type=float, default=2.0)
    options = parser.parse_args()
    with servers() as at:
        rows = asyncio.run(measure(at, options))
    print("".join(f"{column:>14}" for column in COLUMNS))
    for row in rows:
        print("".join(f"{row[column]:>14}" for column in COLUMNS))
    print(json.dumps({"rows": rows, "session_seconds": options.session_seconds, "load": os.getloadavg()}))


if __name__ == "__main__":
    main()
