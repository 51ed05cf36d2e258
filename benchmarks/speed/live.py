"""Both services as processes of their own, with a real Kafka and a real PostgreSQL."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.speed.jobs import SyntheticJob
from evenkeel.contracts.topics import BATCHES, PROFILES, VERDICTS, record_headers
from evenkeel.detector.v1 import detector_pb2
from evenkeel.stack.kafka.node import Kafka
from evenkeel.stack.kafka.topics import apply_topics
from evenkeel.stack.paths import stack_folder
from evenkeel.stack.postgres.databases import upgrade_database
from evenkeel.stack.postgres.server import Postgres
from evenkeel.stack.processes.watchdog import Watchdog

_MODULES = ("evenkeel.services.telemetry", "evenkeel.services.detector")
_STANDSTILL_SECONDS = 45.0
_LOOK_SECONDS, _IDLE_SHARE = 0.5, 0.2
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where the servers are."""

    kafka: str
    database: str


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """A Kafka and a PostgreSQL of one's own, empty at first."""
    folder = stack_folder(f"benchmark-{os.getpid()}")
    folder.mkdir(parents=True)
    watchdog = Watchdog()
    watchdog.start()
    kafka, postgres = Kafka(folder / "kafka", watchdog), Postgres(folder / "postgres", watchdog)
    try:
        kafka.start()
        apply_topics(kafka.bootstrap_servers)
        postgres.start()
        upgrade_database(postgres.database_url)
        yield Servers(kafka=kafka.bootstrap_servers, database=postgres.database_url)
    finally:
        kafka.stop(grace_seconds=0)
        postgres.stop(grace_seconds=0)
        watchdog.stop()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class Services:
    """The running services; started by :func:`running_services`."""

    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        """Sends all of them a signal."""
        for process in self.processes:
            process.send_signal(number)

    def cpu_seconds(self) -> list[float]:
        """CPU time that each has used so far."""
        return [_cpu_seconds(process.pid) for process in self.processes]

    async def settled(self) -> None:
        """Returns when both have next to nothing to do."""
        before, now = self.cpu_seconds(), [_STANDSTILL_SECONDS, 0.0]
        async with asyncio.timeout(_STANDSTILL_SECONDS):
            while sum(now) - sum(before) > _IDLE_SHARE * _LOOK_SECONDS:
                before = self.cpu_seconds()
                await asyncio.sleep(_LOOK_SECONDS)
                now = self.cpu_seconds()

    async def num_judged(self) -> int:
        """Rank-samples that the detector has judged so far."""
        return int(await self.counted(1, "evenkeel_detector_rank_samples_total"))

    async def counted(self, place: int, name: str) -> float:
        """A counter of the service at this place, over all of its labels."""
        body = await asyncio.to_thread(_get, f"http://127.0.0.1:{self.ports[place]}/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in body.splitlines() if line.startswith(name))


@contextlib.asynccontextmanager
async def running_services(
    at: Servers, folder: Path, session_seconds: float = 60.0, *, instance: str = "0"
) -> AsyncIterator[Services]:
    """Telemetry and detector, ready; ended afterwards. Kafka waits so long for one that it does not hear of."""
    services = Services()
    environment = {
        **os.environ,
        "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": at.kafka,
        "EVENKEEL_DATABASE_URL": at.database,
        "EVENKEEL_KAFKA_SESSION_TIMEOUT_SECONDS": str(session_seconds),
        "EVENKEEL_INSTANCE_ID": instance,
        "EVENKEEL_METRICS_PORT": "0",
        "EVENKEEL_LOG_LEVEL": "WARNING",
        "OPENBLAS_NUM_THREADS": "1",
    }
    try:
        for module in _MODULES:
            ready_file = folder / f"{module}-{instance}.json"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, env={**environment, "EVENKEEL_READY_FILE": str(ready_file)}
            )
            services.processes.append(process)
            services.ports.append(await _ready(process, ready_file))
        yield services
    finally:
        for process in services.processes:
            if process.returncode is None:
                process.terminate()
        for process in services.processes:
            await process.wait()


async def backlog_per_second(
    at: Servers, services: Services, num_ranks: int, num_samples: int, *, samples_per_record: int
) -> tuple[float, list[float]]:
    """Rank-samples per second of wall time while the services work off what has piled up; and the CPU time of each."""
    num_iterations = max(8, num_samples // num_ranks)
    job = SyntheticJob(f"backlog-{uuid.uuid4().hex[:8]}", num_ranks)
    records = list(job.records(range(num_iterations), samples_per_record=samples_per_record))
    target = await services.num_judged() + num_ranks * num_iterations
    services.signal(signal.SIGSTOP)
    try:
        await _send(at, job.job_id, records)
        spent_before = services.cpu_seconds()
    finally:
        services.signal(signal.SIGCONT)
    began_seconds = time.perf_counter()
    judged = moved_at_seconds = 0.0
    while (now_judged := await services.num_judged()) < target:
        now_seconds = time.perf_counter()
        if now_judged != judged:
            judged, moved_at_seconds = now_judged, now_seconds
        elif now_seconds - max(moved_at_seconds, began_seconds) > _STANDSTILL_SECONDS:
            raise RuntimeError(f"{target - now_judged} of {num_ranks * num_iterations} rank-samples never came")
        await asyncio.sleep(0.05)
    seconds = time.perf_counter() - began_seconds
    spent = [after - before for before, after in zip(spent_before, services.cpu_seconds(), strict=True)]
    # Of ranks that fall silent without a word pictures would be taken beside the next measurement.
    await _send(at, job.job_id, list(job.endings()))
    await services.settled()
    return num_ranks * num_iterations / seconds, spent


async def finding_delays(
    at: Servers, num_ranks: int, *, num_jobs: int, num_iterations: int, interval_seconds: float
) -> list[float]:
    """Seconds from the acknowledgement of an iteration's last sample to each finding about it in a reader's hands.

    Findings are verdicts (ranks fall ill one after the other) and profiles: both leave the detector the same way.
    """
    victims = {rank: 20 + 3 * place for place, rank in enumerate(range(3, num_ranks, 24))}
    jobs = [
        SyntheticJob(f"live-{uuid.uuid4().hex[:8]}", num_ranks, seed=seed, slow_from=victims)
        for seed in range(num_jobs)
    ]
    told = {job.job_id: [list(job.records(range(i, i + 1))) for i in range(num_iterations)] for job in jobs}
    sent_at: dict[tuple[str, int], float] = {}
    delays: list[float] = []
    reader = AIOKafkaConsumer(
        VERDICTS.name, PROFILES.name, bootstrap_servers=at.kafka, enable_auto_commit=False, fetch_max_wait_ms=50
    )
    await reader.start()
    await reader.seek_to_end()
    reading = asyncio.create_task(_read_findings(reader, sent_at, delays))
    producer = AIOKafkaProducer(bootstrap_servers=at.kafka, linger_ms=0, max_batch_size=256 * 1024)
    await producer.start()
    due_seconds = time.perf_counter()
    for iteration in range(num_iterations):
        due_seconds += interval_seconds
        await asyncio.sleep(max(0.0, due_seconds - time.perf_counter()))
        for job_id, iterations in told.items():
            for value in iterations[iteration]:
                last = await producer.send(
                    BATCHES.name, value, key=job_id.encode(), headers=record_headers(BATCHES, "benchmark")
                )
            await last
            sent_at[job_id, iteration] = time.perf_counter()
    await asyncio.sleep(2.0)  # what comes later than that would show as a missing profile
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await producer.stop()
    await reader.stop()
    least = num_jobs * ((num_iterations - 10) // 5)
    if len(delays) < least:
        raise RuntimeError(f"{len(delays)} findings came, of at least {least}")
    return delays


def percentiles(delays: Sequence[float]) -> tuple[float, float]:
    """Median, and the value below which 99 % lie (the largest, of fewer than a hundred)."""
    return statistics.median(delays), sorted(delays)[-1 - len(delays) // 100]


async def _read_findings(reader: AIOKafkaConsumer, sent_at: dict[tuple[str, int], float], delays: list[float]) -> None:
    while True:
        for partition, records in (await reader.getmany(timeout_ms=50)).items():
            now_seconds = time.perf_counter()
            for record in records:
                if partition.topic == VERDICTS.name:
                    verdict = detector_pb2.Verdict.FromString(record.value)
                    key = verdict.job_id, verdict.decided_iteration
                else:
                    profile = detector_pb2.Profile.FromString(record.value)
                    key = profile.job_id, profile.iteration
                if key[0].startswith("live-"):
                    # It may be there before the acknowledgement is.
                    delays.append(max(0.0, now_seconds - sent_at.get(key, now_seconds)))


async def _send(at: Servers, job_id: str, records: Sequence[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=at.kafka, linger_ms=20, max_batch_size=512 * 1024)
    await producer.start()
    try:
        for value in records:
            await producer.send(BATCHES.name, value, key=job_id.encode(), headers=record_headers(BATCHES, "benchmark"))
    finally:
        await producer.stop()


async def _ready(process: asyncio.subprocess.Process, ready_file: Path) -> int:
    async with asyncio.timeout(600):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"a service ended with {process.returncode}; its log is above")
            with contextlib.suppress(OSError, ValueError):
                port = int(json.loads(await asyncio.to_thread(ready_file.read_text))["metrics_port"])
                await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/healthz")
                return port
            await asyncio.sleep(0.1)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - our own services
        body: bytes = response.read()
    return body.decode()


def _cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
