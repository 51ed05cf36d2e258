"""Both services on a fifth of a core while a hundred jobs tell of their iterations, then on all cores there are.

``python -m benchmarks.speed.starved`` starts a Kafka, a PostgreSQL and the services of its own, and prints a table
and JSON: whether any record was read twice, how often partitions were dealt out, how long catching up took, and how
many of the ranks that fell ill were named. Needs control groups (version 1 or 2) that may be written to.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.speed.jobs import SyntheticJob
from benchmarks.speed.live import Servers, Services, running_services, servers
from benchmarks.speed.quota import cores
from evenkeel.contracts.topics import BATCHES, FRAMES, VERDICTS, record_headers
from evenkeel.detector.v1 import detector_pb2

_LONGEST_CATCH_UP_SECONDS = 300.0
_OF_JOBS_ILL = 10
_ILL_RANK = 3


def main() -> None:
    """Run it once and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--cores", type=float, default=0.2)
    parser.add_argument("--session-seconds", type=float, default=2.0)
    options = parser.parse_args()
    with servers() as at, tempfile.TemporaryDirectory() as folder:
        row = asyncio.run(_run(at, Path(folder), options))
    for name, value in row.items():
        print(f"{name:>32}  {value}")
    print(json.dumps({"starved": row, "load": os.getloadavg()}))


async def _run(at: Servers, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    num_iterations = round(options.minutes * 60)
    async with running_services(at, folder, options.session_seconds) as services:
        with cores([process.pid for process in services.processes], options.cores):
            num_sent = await _feed(at, options.jobs, options.ranks, num_iterations)
            behind = num_sent - await services.num_judged()
        began_seconds = time.monotonic()
        # An iteration of which nothing later is heard stays open for a moment: all but the newest must be there.
        target = options.jobs * options.ranks * (num_iterations - 1)
        while await services.num_judged() < target:
            if time.monotonic() - began_seconds > _LONGEST_CATCH_UP_SECONDS:
                break
            await asyncio.sleep(0.2)
        caught_up_seconds = time.monotonic() - began_seconds
        judged = await services.num_judged()
        handled = await _handled(services)
        rebalances = [await services.counted(place, "evenkeel_kafka_rebalances_total") for place in range(2)]
        written = {topic.name: await _num_records(at, topic.name) for topic in (BATCHES, FRAMES)}
        named = await _named(at)
    return {
        "jobs x ranks": f"{options.jobs} x {options.ranks}",
        "iterations": num_iterations,
        "cores, then all; session seconds": f"{options.cores}; {options.session_seconds:g}",
        "rank-samples behind when starved": behind,
        "caught up after seconds": round(caught_up_seconds, 1),
        "rank-samples judged, of": f"{judged}, {target}",
        "batches read twice": round(handled[0]) - written[BATCHES.name],
        "frames read twice": round(handled[1]) - written[FRAMES.name],
        "assignments": [round(each) for each in rebalances],
        "ill ranks named, of": f"{len(named)}, {len(range(0, options.jobs, _OF_JOBS_ILL))}",
    }


async def _feed(at: Servers, num_jobs: int, num_ranks: int, num_iterations: int) -> int:
    """Every job tells of an iteration a second; how many rank-samples were sent."""
    jobs = [
        SyntheticJob(
            f"starved-{seed}",
            num_ranks,
            seed=seed,
            slow_from={} if seed % _OF_JOBS_ILL else {_ILL_RANK: num_iterations // 2},
        )
        for seed in range(num_jobs)
    ]
    producer = AIOKafkaProducer(bootstrap_servers=at.kafka, linger_ms=5, max_batch_size=256 * 1024)
    await producer.start()
    due_seconds = time.monotonic()
    try:
        for iteration in range(num_iterations):
            for job in jobs:
                for value in job.records(range(iteration, iteration + 1)):
                    await producer.send(
                        BATCHES.name, value, key=job.job_id.encode(), headers=record_headers(BATCHES, "benchmark")
                    )
            due_seconds += 1.0
            await asyncio.sleep(max(0.0, due_seconds - time.monotonic()))
    finally:
        await producer.stop()
    return num_jobs * num_ranks * num_iterations


async def _handled(services: Services) -> list[float]:
    return [await services.counted(place, "evenkeel_kafka_records_total") for place in range(2)]


async def _num_records(at: Servers, topic: str) -> int:
    reader = AIOKafkaConsumer(topic, bootstrap_servers=at.kafka, enable_auto_commit=False)
    await reader.start()
    try:
        partitions = [TopicPartition(topic, number) for number in reader.partitions_for_topic(topic) or ()]
        return sum((await reader.end_offsets(partitions)).values())
    finally:
        await reader.stop()


async def _named(at: Servers) -> set[str]:
    """Jobs whose ill rank, and nobody else, was named as slow."""
    reader = AIOKafkaConsumer(
        VERDICTS.name, bootstrap_servers=at.kafka, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await reader.start()
    named = set()
    try:
        while records := await reader.getmany(timeout_ms=2000):
            for record in (each for some in records.values() for each in some):
                verdict = detector_pb2.Verdict.FromString(record.value)
                is_slow = verdict.kind == detector_pb2.VERDICT_KIND_COMPUTE_SLOW
                if is_slow and [culprit.rank for culprit in verdict.culprits] == [_ILL_RANK]:
                    named.add(verdict.job_id)
    finally:
        await reader.stop()
    return named


if __name__ == "__main__":
    main()
