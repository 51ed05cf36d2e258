"""Scheduler processes of one's own, and ranks that stand still: a controller that is there and says nothing."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.planning.solver.small_jobs import gpt
from benchmarks.speed.live import Servers
from evenkeel.control.v1 import control_pb2 as control
from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.layouts.layout import uniform_layout
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc

FLEET_TOKEN = "a-token-for-loopback-only"  # noqa: S105 - guards nothing
CALL_SECONDS = 60.0
RANKS_PER_JOB = 8
HOME = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=16)
METADATA = (("authorization", f"Bearer {FLEET_TOKEN}"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerProcess:
    """One scheduler.

    Attributes:
        process: It.
        address: Of its fleet API.
        ready_seconds: From its start until its ports were bound.
    """

    process: asyncio.subprocess.Process
    address: str
    ready_seconds: float


@contextlib.asynccontextmanager
async def scheduler(servers: Servers, folder: Path, name: str) -> AsyncIterator[SchedulerProcess]:
    """A scheduler process, killed at the end."""
    ready, started = folder / f"{name}.json", time.monotonic()
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "evenkeel.services.scheduler",
            env={
                **os.environ,
                "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": servers.kafka,
                "EVENKEEL_DATABASE_URL": servers.database,
                "EVENKEEL_FLEET_ADDRESS": "127.0.0.1:0",
                "EVENKEEL_FLEET_TOKEN": FLEET_TOKEN,
                "EVENKEEL_READY_FILE": str(ready),
            },
            stdout=log,
            stderr=log,
        )
    try:
        while not ready.exists():
            if process.returncode is not None:
                raise RuntimeError(f"the scheduler ended: {(folder / f'{name}.log').read_text()[-2000:]}")
            await asyncio.sleep(0.005)
        seconds = time.monotonic() - started
        port = json.loads(ready.read_text())["grpc_port"]
        ready.unlink()
        yield SchedulerProcess(process=process, address=f"127.0.0.1:{port}", ready_seconds=seconds)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_answers(stub: "scheduler_pb2_grpc.FleetServiceAsyncStub", job_id: str = "") -> float:
    """Seconds until a scheduler that is in charge answers, about a job if one is named."""
    started = time.monotonic()
    while time.monotonic() < started + CALL_SECONDS:
        with contextlib.suppress(grpc.aio.AioRpcError):
            if job_id:
                await stub.GetJob(pb.GetJobRequest(job_id=job_id), metadata=METADATA, timeout=0.5)
            else:
                await stub.ListJobs(pb.ListJobsRequest(page_size=1), metadata=METADATA, timeout=0.5)
            return time.monotonic() - started
        await asyncio.sleep(0.005)
    raise TimeoutError("no scheduler answers")


async def _watched(request: control.WatchRequest, context: object) -> AsyncIterator[control.WatchResponse]:
    """A stream on which nothing is said."""
    await asyncio.Event().wait()
    yield control.WatchResponse()


@contextlib.asynccontextmanager
async def silent_controllers() -> AsyncIterator[str]:
    """The address of controllers that let themselves be watched, for any number of ranks."""
    server = grpc.aio.server()
    watch = grpc.unary_stream_rpc_method_handler(
        _watched,
        request_deserializer=control.WatchRequest.FromString,
        response_serializer=control.WatchResponse.SerializeToString,
    )
    name = control.DESCRIPTOR.services_by_name["RankControlService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Watch": watch}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def register_jobs(stub: "scheduler_pb2_grpc.FleetServiceAsyncStub", job_ids: Sequence[str]) -> None:
    """Jobs of :data:`RANKS_PER_JOB` ranks, without their ranks."""
    for job_id in job_ids:
        request = pb.RegisterJobRequest(
            job_id=job_id,
            name=job_id,
            job_token=f"token-of-{job_id}",
            model=model_to_proto(gpt(6)),
            layout=layout_to_proto(HOME),
        )
        await stub.RegisterJob(request, metadata=METADATA, timeout=CALL_SECONDS)


def processes_of(job_number: int, address: str, *, ranks: Sequence[int], incarnation: int = 0) -> list[pb.RankProcess]:
    """Processes of a job's ranks on a node of its own."""
    return [
        pb.RankProcess(
            rank=rank,
            incarnation=incarnation,
            node=f"node-{job_number}",
            device=f"gpu-{rank}",
            address=address,
            process_id=1000 + rank,
        )
        for rank in ranks
    ]
