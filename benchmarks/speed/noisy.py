"""What one noisy job costs all others: ``python -m benchmarks.speed.noisy``.

A Kafka, a PostgreSQL and the services of its own. Quiet jobs, which are registered and sign what they tell, each lose a
rank while one job makes noise in a partition of theirs: ten times their rate, bytes that are no batch or do not fit
together, restarts in a loop, or records in the name of others. Prints a table, then JSON: how late the verdicts about
the deaths are, how much later than without noise, and how many accused anybody who was not lost.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.speed.fleet import LOST_RANK, NUM_RANKS, Fleet
from benchmarks.speed.jobs import SyntheticJob
from benchmarks.speed.live import Servers, running_services, servers
from evenkeel.contracts.mac import job_key, signed
from evenkeel.contracts.topics import BATCHES, VERDICTS, record_headers
from evenkeel.history.writes import register_job, register_ranks
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.simulator.live.rank_batches import add_news, empty_batch
from evenkeel.telemetry.v2 import process_pb2
from tests.integration.history.seed import START, job, rank

COLUMNS = ("noise", "records", "dead_letters", "verdicts", "p50_seconds", "max_seconds", "wrong")
_PER_SECOND = 10 * 2 * NUM_RANKS
_NUM_ITERATIONS = 20
Noise = Iterator[tuple[str, bytes]]
"""Job id and value of one record after the other."""


def nothing(_: Fleet) -> Noise:
    """No noise."""
    return iter(())


def ten_times(_: Fleet) -> Noise:
    """A job in a hurry."""
    noisy = SyntheticJob("noisy", NUM_RANKS)
    for iteration in itertools.count():
        yield from (("noisy", value) for value in noisy.records(range(iteration, iteration + 1)))


def malformed(fleet: Fleet) -> Noise:
    """No batches, torn ones, and columns that do not fit together."""
    for _, value in ten_times(fleet):
        yield from (("noisy", spoiled) for spoiled in (os.urandom(200), value[: len(value) // 2], value + value[:40]))


def restarting(_: Fleet) -> Noise:
    """Processes that end after two iterations, again and again."""
    for incarnation in itertools.count():
        noisy = SyntheticJob("noisy", NUM_RANKS)
        for number in range(NUM_RANKS):
            kinds = (process_pb2.PROCESS_EVENT_KIND_DIED, process_pb2.PROCESS_EVENT_KIND_STARTED)
            for kind, which in zip(kinds, (incarnation - 1, incarnation), strict=True):
                event = process_pb2.ProcessEvent(kind=kind, rank=number, incarnation=max(0, which), at_unix_seconds=1.0)
                batch = add_news(empty_batch(job_id="noisy", rank=-1), events=[event])
                yield "noisy", batch.SerializeToString()
        yield from (("noisy", value) for value in noisy.records(range(2)))


def forged(fleet: Fleet) -> Noise:
    """Deaths and slow iterations in the name of others, unsigned and under a key of one's own."""
    for number in itertools.count():
        for victim in fleet.job_ids:
            kind = process_pb2.PROCESS_EVENT_KIND_DIED
            deaths = [
                process_pb2.ProcessEvent(kind=kind, rank=LOST_RANK + 1, incarnation=which, at_unix_seconds=1.0)
                for which in (0, 1_000_000_000)
            ]
            news = add_news(empty_batch(job_id=victim, rank=-1), events=deaths).SerializeToString()
            slow = SyntheticJob(victim, NUM_RANKS, slow_from={LOST_RANK + 1: 0})
            for value in (news, *slow.records(range(number, number + 1))):
                yield victim, value if number % 2 else signed(value, job_key(victim, "a token of somebody else"))


_NOISES = {
    "nothing": nothing,
    "ten times": ten_times,
    "malformed": malformed,
    "restarting": restarting,
    "forged": forged,
}


async def _make(noise: Noise, producer: AIOKafkaProducer, partition: int) -> int:
    """Sends noise until cancelled; returns how many records that were."""
    began_seconds, num_sent = time.monotonic(), 0
    with contextlib.suppress(asyncio.CancelledError):
        for job_id, value in noise:
            headers = record_headers(BATCHES, "benchmark")
            own = {"partition": partition} if job_id == "noisy" else {}
            await producer.send(BATCHES.name, value, key=job_id.encode(), headers=headers, **own)
            num_sent += 1
            await asyncio.sleep(max(0.0, began_seconds + num_sent / _PER_SECOND - time.monotonic()))
    return num_sent


async def _register(at: Servers, fleet: Fleet) -> None:
    engine = create_engine(at.database, application_name="benchmark")
    async with engine.begin() as connection:
        for job_id in fleet.job_ids:
            await register_job(connection, job(job_id, f"token-of-{job_id}"))
            await register_ranks(connection, [rank(job_id, number, START) for number in range(NUM_RANKS)])
    await engine.dispose()


async def measure(at: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    print("".join(f"{column:>14}" for column in COLUMNS), flush=True)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noisy-")))
        services = await stack.enter_async_context(running_services(at, folder))
        producer = AIOKafkaProducer(bootstrap_servers=at.kafka, linger_ms=5)
        await producer.start()
        stack.push_async_callback(producer.stop)
        reader = AIOKafkaConsumer(VERDICTS.name, bootstrap_servers=at.kafka, enable_auto_commit=False)
        await reader.start()
        stack.push_async_callback(reader.stop)
        await producer.partitions_for(BATCHES.name)  # it knows them from now on
        for name in options.noises:
            buried_before = await services.counted(0, "evenkeel_kafka_dead_letters_total")
            delays, num_wrong, num_sent = list[float](), 0, 0
            for _ in range(options.runs):
                fleet = Fleet(producer, options.jobs, tokens=True)
                await _register(at, fleet)
                # As the partitioner of all our producers: where the first of the quiet jobs is.
                partition = producer._partition(BATCHES.name, None, None, None, fleet.job_ids[0].encode(), b"")
                making = asyncio.create_task(_make(_NOISES[name](fleet), producer, partition))
                await fleet.iterate(_NUM_ITERATIONS)
                await fleet.lose_a_rank()
                more, wrong = await fleet.delays(reader)
                making.cancel()
                delays, num_wrong, num_sent = delays + more, num_wrong + wrong, num_sent + await making
            buried = await services.counted(0, "evenkeel_kafka_dead_letters_total") - buried_before
            values = (name, num_sent, round(buried), len(delays), median(delays), max(delays), num_wrong)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
            print(
                "".join(f"{each:>14.2f}" if isinstance(each, float) else f"{each:>14}" for each in values), flush=True
            )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--noises", nargs="+", choices=_NOISES, default=list(_NOISES))
    options = parser.parse_args()
    with servers() as at:
        rows = asyncio.run(measure(at, options))
    print(json.dumps({"noisy": rows, "load": os.getloadavg()}))


if __name__ == "__main__":
    main()
