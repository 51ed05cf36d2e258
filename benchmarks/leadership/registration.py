"""How many ranks can register at once: ``python -m benchmarks.leadership.registration``.

One scheduler on a Kafka and a PostgreSQL of its own; every job's ranks register at the same moment, in one call a rank
and in one call a launcher. Latencies are those of the calls as a caller sees them; nothing may be lost or refused.
Prints a table, then JSON.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import grpc

from benchmarks.leadership.schedulers import (
    CALL_SECONDS,
    METADATA,
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

COLUMNS = ("calls", "ranks", "p50_seconds", "p99_seconds", "max_seconds", "wall_seconds", "refused", "lost")


async def all_at_once(
    stub: "scheduler_pb2_grpc.FleetServiceAsyncStub", address: str, *, mode: str, num_jobs: int
) -> dict[str, Any]:
    """Registers jobs, then all of their ranks at the same moment."""
    job_ids = [f"{mode.replace(' ', '-')}-{number}" for number in range(num_jobs)]
    await register_jobs(stub, job_ids)
    together = RANKS_PER_JOB if mode == "a launcher" else 1
    groups = [
        (number, range(first, first + together))
        for first in range(0, RANKS_PER_JOB, together)
        for number in range(num_jobs)
    ]
    refused: list[str] = []

    async def call(number: int, ranks: range) -> float:
        request = pb.RegisterRanksRequest(job_id=job_ids[number], processes=processes_of(number, address, ranks=ranks))
        started = time.monotonic()
        try:
            await stub.RegisterRanks(
                request, metadata=(("authorization", f"Bearer token-of-{job_ids[number]}"),), timeout=CALL_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            refused.append(f"{error.code().name}: {error.details()}")
        return time.monotonic() - started

    started = time.monotonic()
    seconds = await asyncio.gather(*(call(number, ranks) for number, ranks in groups))
    wall_seconds = time.monotonic() - started
    known = 0
    for job_id in job_ids:
        job = (await stub.GetJob(pb.GetJobRequest(job_id=job_id), metadata=METADATA, timeout=CALL_SECONDS)).job
        known += sum(bool(rank.address) for rank in job.ranks)
    return {
        "mode": f"one call {mode}",
        "calls": len(groups),
        "ranks": num_jobs * RANKS_PER_JOB,
        "p50_seconds": round(quantiles(seconds, n=100)[49], 3),
        "p99_seconds": round(quantiles(seconds, n=100)[98], 3),
        "max_seconds": round(max(seconds), 3),
        "wall_seconds": round(wall_seconds, 3),
        "refused": len(refused),
        "lost": num_jobs * RANKS_PER_JOB - known,
    }


async def measure(alive: Servers, num_jobs: int) -> list[dict[str, Any]]:
    """Both ways, one after the other, at one scheduler."""
    with tempfile.TemporaryDirectory(prefix="registration-") as folder:
        async with (
            scheduler(alive, Path(folder), "scheduler") as one,
            silent_controllers() as address,
            grpc.aio.insecure_channel(one.address) as channel,
        ):
            stub = scheduler_pb2_grpc.FleetServiceStub(channel)
            await until_answers(stub)
            return [await all_at_once(stub, address, mode=mode, num_jobs=num_jobs) for mode in ("a rank", "a launcher")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    num_jobs = parser.parse_args().jobs
    with servers() as alive:
        rows = asyncio.run(measure(alive, num_jobs))
    print(f"{'':18}" + "".join(f"{column:>14}" for column in COLUMNS))
    for row in rows:
        print(f"{row['mode']:18}" + "".join(f"{row[column]:>14}" for column in COLUMNS))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
