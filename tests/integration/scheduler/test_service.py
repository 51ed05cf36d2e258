"""The scheduler as a process beside real Kafka and PostgreSQL, killed and started again."""

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.contracts.topics import BATCHES, PLANS, PROFILES, VERDICTS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from tests.integration.scheduler.conftest import HOME
from tests.integration.scheduler.toy_job import ToyJob

pytestmark = pytest.mark.integration

FLEET_TOKEN = "a-fleet-token-for-tests"
DEADLINE_SECONDS = 200.0


@asynccontextmanager
async def service(
    kafka: str, database_url: str, folder: Path, *, stands_by: bool = False, **settings: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """The process, in charge unless it ``stands_by``, and the port of its fleet API; killed at the end."""
    ready = folder / f"ready-{uuid.uuid4().hex}.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "evenkeel.services.scheduler",
        env={
            **os.environ,
            "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": kafka,
            "EVENKEEL_DATABASE_URL": database_url,
            "EVENKEEL_FLEET_ADDRESS": "127.0.0.1:0",
            "EVENKEEL_FLEET_TOKEN": FLEET_TOKEN,
            "EVENKEEL_READY_FILE": str(ready),
            **settings,
        },
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not ready.exists():
                assert process.returncode is None, "the scheduler ended"
                await asyncio.sleep(0.02)
        port = json.loads(ready.read_text())["grpc_port"]
        if not stands_by and "EVENKEEL_TLS_CERTIFICATE" not in settings:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await until_in_charge(channel)
        yield process, port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def send(kafka: str, topic: str, job_id: str, message: object) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka, acks="all") as producer:
        await producer.send_and_wait(topic, message.SerializeToString(), key=job_id.encode())  # type: ignore[attr-defined]


def death(job_id: str, rank: int) -> detector_pb2.Verdict:
    return detector_pb2.Verdict(
        verdict_id=uuid.uuid4().hex,
        job_id=job_id,
        kind=detector_pb2.VERDICT_KIND_FAIL_STOP,
        culprits=[detector_pb2.Culprit(rank=rank, incarnation=0, node="node-0", device=f"gpu-{rank}")],
        confidence=1.0,
        decided_at_unix_seconds=time.time(),
    )


@pytest.fixture
def toys() -> Iterator[ToyJob]:
    job = ToyJob(f"toy-{uuid.uuid4().hex[:8]}", HOME)
    job.start()
    yield job
    job.stop()


async def register(stub: scheduler_pb2_grpc.FleetServiceStub, toys: ToyJob) -> None:
    await stub.RegisterJob(
        pb.RegisterJobRequest(
            job_id=toys.job_id,
            name="toy",
            job_token=toys.token,
            model=model_to_proto(gpt(6)),
            layout=layout_to_proto(HOME),
        ),
        metadata=metadata(FLEET_TOKEN),
        timeout=100,
    )
    for toy in toys.ranks.values():
        await stub.RegisterRanks(
            pb.RegisterRanksRequest(
                job_id=toys.job_id,
                processes=[
                    pb.RankProcess(
                        rank=toy.rank,
                        incarnation=0,
                        node="node-0",
                        device=f"gpu-{toy.rank}",
                        address=toy.server.address(),
                        process_id=1,
                    )
                ],
            ),
            metadata=metadata(toys.token),
            timeout=100,
        )


async def until_without(stub: scheduler_pb2_grpc.FleetServiceStub, toys: ToyJob, rank: int) -> pb.Job:
    """The job once its layout has no such rank."""
    request = pb.WatchJobRequest(job_id=toys.job_id)
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for news in stub.WatchJob(request, metadata=metadata(toys.token)):
            if news.WhichOneof("happened") == "job":
                ranks = {r for replica in news.job.layout.replicas for stage in replica.stages for r in stage.ranks}
                if rank not in ranks:
                    return news.job
    raise AssertionError("the stream ended")


async def read_until(kafka: str, topic: str, job_id: str, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    """The job's different records, once they are enough: what was published just before a kill may come again."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka, auto_offset_reset="earliest")
    found: dict[bytes, None] = {}
    async with asyncio.timeout(DEADLINE_SECONDS), consumer:
        while not enough(list(found)):
            record = await consumer.getone()
            if record.key == job_id.encode():
                found[record.value] = None
    return list(found)


def applied(plans: list[bytes]) -> list[int]:
    """Epochs of the plans that every rank was seen to run; an attempt that came to nothing uses its epoch up."""
    states = [pb.Plan.FromString(plan) for plan in plans]
    return [plan.epoch for plan in states if plan.state == pb.PLAN_STATE_APPLIED]


@pytest.mark.asyncio
async def test_a_job_survives_deaths_of_ranks_and_of_the_scheduler(
    kafka_bootstrap: str, fresh_database_url: str, toys: ToyJob, tmp_path: Path
) -> None:
    async with service(kafka_bootstrap, fresh_database_url, tmp_path) as (process, port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_pb2_grpc.FleetServiceStub(channel)
            await register(stub, toys)
            profile = detector_pb2.Profile(
                job_id=toys.job_id, iteration=5, seconds_per_flop=2e-10, tokens=1024, sum_of_squares=1e5
            )
            await send(kafka_bootstrap, PROFILES.name, toys.job_id, profile)
            toys.ranks[3].kill()
            await send(kafka_bootstrap, VERDICTS.name, toys.job_id, death(toys.job_id, 3))
            job = await until_without(stub, toys, 3)
            first_epoch = job.epoch
        process.send_signal(signal.SIGKILL)
        await process.wait()
    steps = toys.ranks[0].steps
    toys.ranks[6].kill()
    await send(kafka_bootstrap, VERDICTS.name, toys.job_id, death(toys.job_id, 6))
    async with (
        service(kafka_bootstrap, fresh_database_url, tmp_path) as (process, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        job = await until_without(scheduler_pb2_grpc.FleetServiceStub(channel), toys, 6)
        assert job.epoch > first_epoch
        assert toys.ranks[0].steps >= steps
        told = await read_until(kafka_bootstrap, PLANS.name, toys.job_id, lambda seen: len(applied(seen)) == 2)
        assert applied(told) == [first_epoch, job.epoch]
        assert await read_until(kafka_bootstrap, BATCHES.name, toys.job_id, bool)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 100) == 0


@pytest.mark.asyncio
async def test_a_second_scheduler_stands_by_and_takes_over_and_the_first_ends_when_it_wakes(
    kafka_bootstrap: str, fresh_database_url: str, toys: ToyJob, tmp_path: Path
) -> None:
    async with (
        service(kafka_bootstrap, fresh_database_url, tmp_path) as (first, first_port),
        grpc.aio.insecure_channel(f"127.0.0.1:{first_port}") as channel,
    ):
        await register(scheduler_pb2_grpc.FleetServiceStub(channel), toys)
        async with (
            service(kafka_bootstrap, fresh_database_url, tmp_path, stands_by=True) as (_, second_port),
            grpc.aio.insecure_channel(f"127.0.0.1:{second_port}") as other,
        ):
            stub = scheduler_pb2_grpc.FleetServiceStub(other)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while f"in charge is at 127.0.0.1:{first_port}" not in (refusal := await refused(stub)):
                    assert "no scheduler is in charge yet" in refusal
            first.send_signal(signal.SIGSTOP)
            await until_in_charge(other)
            toys.ranks[3].kill()
            await send(kafka_bootstrap, VERDICTS.name, toys.job_id, death(toys.job_id, 3))
            job = await until_without(stub, toys, 3)
            assert all(toy.mailbox.state.epoch == job.epoch for rank, toy in toys.ranks.items() if rank != 3)
            first.send_signal(signal.SIGCONT)
            assert await asyncio.wait_for(first.wait(), DEADLINE_SECONDS) != 0, "it knows that it is out of place"


async def refused(stub: scheduler_pb2_grpc.FleetServiceStub) -> str:
    """What a scheduler that is not in charge answers; empty from one that is."""
    try:
        await stub.ListJobs(pb.ListJobsRequest(), metadata=metadata(FLEET_TOKEN), timeout=10)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return ""


async def until_in_charge(channel: grpc.aio.Channel) -> None:
    """Waits for what its health service says."""
    request = health_pb2.HealthCheckRequest(service="evenkeel.scheduler.v1.FleetService")
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for answer in health_pb2_grpc.HealthStub(channel).Watch(request):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
