"""The detector as a process of its own, on real Kafka and PostgreSQL, killed with SIGKILL in the middle."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import urllib.request
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from evenkeel.contracts.topics import FRAMES, PROFILES, VERDICTS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.telemetry.v2 import frames_pb2 as pb
from tests.unit.detector.synthetic import SyntheticJob, cube, slow_from
from tests.unit.detector.wire import death, frame_to_proto

pytestmark = pytest.mark.integration


class Service:
    """One detector process at a time; a restart keeps its group."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._ready_file = folder / "ready.json"
        self._environment = {**os.environ, **environment, "EVENKEEL_READY_FILE": str(self._ready_file)}
        self._log = folder / "service.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "evenkeel.services.detector", env=self._environment, stdout=log, stderr=log
            )
        async with asyncio.timeout(200):
            while not await asyncio.to_thread(self._ready):
                assert self._process.returncode is None, self._log.read_text()
                await asyncio.sleep(0.05)

    async def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        async with asyncio.timeout(100):
            return await self._process.wait()

    async def metric(self, name: str) -> float:
        text = await asyncio.to_thread(self._get, "/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def _ready(self) -> bool:
        if not self._ready_file.exists():
            return False
        with contextlib.suppress(OSError):
            self._get("/healthz")
            return True
        return False

    def _get(self, path: str) -> str:
        port = json.loads(self._ready_file.read_text())["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return str(response.read().decode())


class Findings:
    """What the detector published about one job."""

    def __init__(self, consumer: AIOKafkaConsumer, job_id: str) -> None:
        self._consumer = consumer
        self._job_id = job_id
        self.verdicts: list[detector_pb2.Verdict] = []
        self.profiles: list[detector_pb2.Profile] = []

    async def until(self, iteration: int, num_verdicts: int) -> None:
        """A profile so late or later, and so many different verdicts: they come by topics of their own."""

        def all_there() -> bool:
            told = {verdict.verdict_id for verdict in self.verdicts}
            return len(told) >= num_verdicts and any(profile.iteration >= iteration for profile in self.profiles)

        async with asyncio.timeout(200):
            while not all_there():
                record = await self._consumer.getone()
                if record.key != self._job_id.encode():
                    continue
                if record.topic == VERDICTS.name:
                    self.verdicts.append(detector_pb2.Verdict.FromString(record.value))
                else:
                    self.profiles.append(detector_pb2.Profile.FromString(record.value))


@contextlib.asynccontextmanager
async def findings_of(bootstrap: str, job_id: str) -> AsyncIterator[Findings]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic.name, n) for topic in (VERDICTS, PROFILES) for n in range(4)]
        consumer.assign(partitions)
        await consumer.seek_to_end(*partitions)
        yield Findings(consumer, job_id)
    finally:
        await consumer.stop()


async def publish(producer: AIOKafkaProducer, messages: Sequence[pb.Observation]) -> None:
    for message in messages:
        await producer.send(FRAMES.name, message.SerializeToString(), key=message.job_id.encode())
    await producer.flush()


@pytest.mark.asyncio
async def test_killed_in_the_middle_it_says_what_an_undisturbed_one_says(
    kafka_bootstrap: str, fresh_database_url: str, tmp_path: Path
) -> None:
    job_id = f"job-{uuid.uuid4().hex[:8]}"
    frames = SyntheticJob(places=cube(), throughput=slow_from(2, 60, 0.6, stop=90)).frames(0, 120)
    messages = [frame_to_proto(frame, job_id, frame.iteration) for frame in frames]
    messages.insert(100, death(job_id, 100, rank=7, at_unix_seconds=1_099.5))
    for sequence, message in enumerate(messages):
        message.sequence = sequence
    service = Service(
        tmp_path,
        {
            "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap,
            "EVENKEEL_DATABASE_URL": fresh_database_url,
            "EVENKEEL_DETECTOR_GROUP": f"detector-{job_id}",
            "EVENKEEL_DETECTOR_SNAPSHOT_SECONDS": "0.1",
        },
    )
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all")
    await producer.start()
    try:
        async with findings_of(kafka_bootstrap, job_id) as findings:
            await service.start()
            await publish(producer, messages[:55])
            await findings.until(45, num_verdicts=0)
            async with asyncio.timeout(200):
                while await service.metric("evenkeel_detector_snapshot_bytes_total") == 0:  # noqa: ASYNC110 - it is another process
                    await asyncio.sleep(0.05)
            await publish(producer, messages[55:70])
            await service.end(signal.SIGKILL)
            await publish(producer, messages[70:])
            await service.start()
            await findings.until(115, num_verdicts=3)
            assert await service.metric("evenkeel_detector_lag_seconds_count") > 0
    finally:
        code = await service.end(signal.SIGTERM)
        await producer.stop()
    assert code == 0
    unique = {verdict.verdict_id: verdict for verdict in findings.verdicts}
    assert [(verdict.kind, verdict.culprits[0].rank) for verdict in unique.values()] == [
        (detector_pb2.VERDICT_KIND_COMPUTE_SLOW, 2),
        (detector_pb2.VERDICT_KIND_RECOVERED, 2),
        (detector_pb2.VERDICT_KIND_FAIL_STOP, 7),
    ]
    slow = next(iter(unique.values()))
    assert slow.throughput == pytest.approx(0.6, abs=0.02)
    assert slow.decided_iteration <= 65
