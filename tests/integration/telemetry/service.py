"""The telemetry service as a process of its own, and a job's ranks that write to it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from evenkeel.contracts.frames import Frames, read_frames
from evenkeel.contracts.mac import JobKey, signed
from evenkeel.contracts.topics import BATCHES, FRAMES, record_headers
from evenkeel.simulator.live.rank_batches import add_news, empty_batch
from evenkeel.telemetry.v2 import batch_pb2, frames_pb2, process_pb2
from tests.unit.telemetry.samples import Sample


class Service:
    """One process; a restart keeps its instance and group."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._ready_file = folder / "ready.json"
        self._environment = {**os.environ, **environment, "EVENKEEL_READY_FILE": str(self._ready_file)}
        self.process: asyncio.subprocess.Process | None = None
        self.log = folder / "service.log"

    def another(self, folder: Path, instance: str) -> "Service":
        """Another instance of the same group."""
        folder.mkdir()
        return Service(folder, {**self._environment, "EVENKEEL_INSTANCE_ID": instance})

    async def start(self) -> None:
        """Returns when it is ready."""
        await self.launch()
        await self.until_ready()

    async def launch(self) -> None:
        """Returns when the ports are bound."""
        self._ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "evenkeel.services.telemetry", env=self._environment, stdout=log, stderr=log
            )
        async with asyncio.timeout(200):
            while not self._ready_file.exists():
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.1)

    async def until_ready(self) -> None:
        assert self.process is not None
        async with asyncio.timeout(200):
            while not await self.ready():
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.1)

    async def ready(self) -> bool:
        return self._ready_file.exists() and (await self.get("/healthz"))[0] == 200

    async def get(self, path: str) -> tuple[int, str]:
        port = json.loads(self._ready_file.read_text())["metrics_port"]
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{port}{path}")

    async def metric(self, name: str) -> float:
        _, text = await self.get("/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    async def until_metric(self, name: str, condition: Callable[[float], bool]) -> None:
        async with asyncio.timeout(200):
            while not condition(await self.metric(name)):  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.2)

    async def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(100):
            return await self.process.wait()


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status), response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Ranks:
    """Writes records of a job's ranks, signed if the job has a key."""

    def __init__(self, producer: AIOKafkaProducer, job_id: str, key: JobKey | None) -> None:
        self._producer = producer
        self._key = key
        self._job_id = job_id
        self._sequences: dict[tuple[int, int], int] = {}

    async def send(self, *batches: batch_pb2.Batch) -> None:
        """Together: frames do not wait long for ranks that are late."""
        await self.send_bytes(*(signed(batch.SerializeToString(), self._key) for batch in batches))

    async def send_bytes(self, *values: bytes) -> None:
        key, headers = self._job_id.encode(), record_headers(BATCHES, "test")
        sent = [await self._producer.send(BATCHES.name, value, key=key, headers=headers) for value in values]
        await asyncio.gather(*sent)

    def told(
        self, rank: int, *, incarnation: int = 0, events: Sequence[process_pb2.ProcessEvent] = ()
    ) -> batch_pb2.Batch:
        """A batch without iterations."""
        who = {"job_id": self._job_id, "node": "node-0", "device": f"device-{rank}"}
        batch = empty_batch(**who, rank=rank, incarnation=incarnation, sequence=self._next(rank, incarnation))
        return add_news(batch, events=events)

    async def iteration(self, iteration: int, ranks: Sequence[int]) -> None:
        await self.send(*self.samples(iteration, ranks))

    def samples(self, iteration: int, ranks: Sequence[int]) -> list[batch_pb2.Batch]:
        return [
            Sample(
                rank,
                iteration,
                sequence=self._next(rank, 0),
                started_at_unix_seconds=time.time(),
                wall_seconds=0.05,
                forward_seconds=0.01,
                backward_seconds=0.02,
                wait_vote_seconds=0.001,
                tokens=100,
                sum_of_squares=1000.0,
                loss=2.0,
            ).message(self._job_id)
            for rank in ranks
        ]

    def progress(self, iteration: int, ranks: Sequence[int], operation: str = "forward") -> list[batch_pb2.Batch]:
        now_seconds = time.time()
        report = process_pb2.Progress(
            at_unix_seconds=now_seconds, iteration=iteration, operation_count=iteration, operation=operation
        )
        return [add_news(self.told(rank), progress=[report]) for rank in ranks]

    def _next(self, rank: int, incarnation: int) -> int:
        sequence = self._sequences[rank, incarnation] = self._sequences.get((rank, incarnation), -1) + 1
        return sequence


class Observations:
    """Reads one job's observations from the topic's beginning."""

    def __init__(self, consumer: AIOKafkaConsumer, job_id: str) -> None:
        self._consumer = consumer
        self._job_id = job_id
        self.all: list[frames_pb2.Observation] = []
        self.num_runs = 0

    @property
    def frames(self) -> list[Frames]:
        """One iteration each."""
        told = [read_frames(each.frames) for each in self.all if each.HasField("frames")]
        return [frame for frames in told for frame in frames.each()]

    @property
    def pictures(self) -> list[frames_pb2.Liveness]:
        return [each.liveness for each in self.all if each.HasField("liveness") and not each.liveness.HasField("event")]

    @property
    def events(self) -> list[process_pb2.ProcessEvent]:
        return [each.liveness.event for each in self.all if each.liveness.HasField("event")]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(200):
            while not condition():
                for records in (await self._consumer.getmany(timeout_ms=50)).values():
                    for each in records:
                        if each.key == self._job_id.encode():
                            told = frames_pb2.Observation.FromString(each.value)
                            self.num_runs += len(told.frames.iteration) > 1
                            self.all.append(told)


def ranks_in(frame: Frames) -> list[int]:
    """The ranks that reported a frame."""
    present: list[int] = frame.members.rank[frame.present[0]].tolist()
    return present


@contextlib.asynccontextmanager
async def observations_of(bootstrap_servers: str, job_id: str) -> AsyncIterator[Observations]:
    consumer = AIOKafkaConsumer(
        FRAMES.name, bootstrap_servers=bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        yield Observations(consumer, job_id)
    finally:
        await consumer.stop()


@contextlib.asynccontextmanager
async def ranks_of(bootstrap_servers: str, job_id: str, key: JobKey | None = None) -> AsyncIterator[Ranks]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
    await producer.start()
    try:
        yield Ranks(producer, job_id, key)
    finally:
        await producer.stop()
