"""How long the fleet is without a scheduler: ``python -m benchmarks.leadership.takeover``.

Two schedulers on a Kafka and a PostgreSQL of their own. The one in charge is killed (SIGKILL) or frozen (SIGSTOP), and
a caller that knows both addresses asks until it is answered again, about the job that registered last. Beside it, how
long a scheduler takes from its start until its ports are bound. Prints a table, then JSON.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import grpc

from benchmarks.leadership.schedulers import (
    CALL_SECONDS,
    RANKS_PER_JOB,
    processes_of,
    register_jobs,
    scheduler,
    silent_controllers,
    until_answers,
)
from benchmarks.speed.live import Servers, servers
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc

COLUMNS = ("signal", "jobs", "runs", "p50_seconds", "max_seconds", "ready_seconds")


async def takeover(alive: Servers, folder: Path, how: signal.Signals, num_jobs: int) -> tuple[float, float]:
    """Seconds until the fleet is answered again, and those that the second scheduler took to be ready."""
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(silent_controllers())
        first = await stack.enter_async_context(scheduler(alive, folder, "first"))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(first.address))
        stub = scheduler_pb2_grpc.FleetServiceStub(channel)
        await until_answers(stub)
        job_ids = [f"{how.name}-{num_jobs}-{os.urandom(4).hex()}-{number}" for number in range(num_jobs)]
        await register_jobs(stub, job_ids)
        for number, job_id in enumerate(job_ids):
            processes = processes_of(number, address, ranks=range(RANKS_PER_JOB))
            await stub.RegisterRanks(
                pb.RegisterRanksRequest(job_id=job_id, processes=processes),
                metadata=(("authorization", f"Bearer token-of-{job_id}"),),
                timeout=CALL_SECONDS,
            )
        second = await stack.enter_async_context(scheduler(alive, folder, "second"))
        await asyncio.sleep(3.0)  # it has warmed up, and looks at the lease
        other = await stack.enter_async_context(grpc.aio.insecure_channel(second.address))
        first.process.send_signal(how)
        seconds = await until_answers(scheduler_pb2_grpc.FleetServiceStub(other), job_ids[-1])
        for job_id in job_ids:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await scheduler_pb2_grpc.FleetServiceStub(other).FinishJob(
                    pb.FinishJobRequest(job_id=job_id),
                    metadata=(("authorization", f"Bearer token-of-{job_id}"),),
                    timeout=CALL_SECONDS,
                )
        return seconds, second.ready_seconds


async def measure(alive: Servers, num_runs: int, jobs: list[int]) -> list[dict[str, Any]]:
    """All combinations."""
    rows = []
    for num_jobs in jobs:
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with tempfile.TemporaryDirectory(prefix="takeover-") as folder:
                runs = [await takeover(alive, Path(folder), how, num_jobs) for _ in range(num_runs)]
            seconds, ready = [one for one, _ in runs], [one for _, one in runs]
            rows.append(
                {
                    "signal": how.name,
                    "jobs": num_jobs,
                    "runs": num_runs,
                    "p50_seconds": round(median(seconds), 3),
                    "max_seconds": round(max(seconds), 3),
                    "ready_seconds": round(median(ready), 3),
                }
            )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 100])
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # gRPC tells of every stream that its client left
    with servers() as alive:
        rows = asyncio.run(measure(alive, options.runs, options.jobs))
    print("".join(f"{column:>14}" for column in COLUMNS))
    for row in rows:
        print("".join(f"{row[column]:>14}" for column in COLUMNS))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
