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
from pathlib import Path
from statistics import median
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.speed.fleet import Fleet
from benchmarks.speed.live import Servers, Services, running_services, servers
from evenkeel.contracts.topics import VERDICTS

COLUMNS = ("killed", "runs", "verdicts", "p50_seconds", "max_seconds")
_PLACES = {"nobody": None, "telemetry": 0, "detector": 1}


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
        await fleet.iterate(20)
        _kill(first, killed)
        await fleet.lose_a_rank()
        delays, _ = await fleet.delays(reader)
        return delays


def _kill(services: Services, killed: str) -> None:
    place = _PLACES[killed]
    if place is not None:
        services.processes[place].send_signal(signal.SIGKILL)


async def measure(at: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    print("".join(f"{column:>14}" for column in COLUMNS), flush=True)
    for killed in options.killed:
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
        print("".join(f"{rows[-1][column]:>14}" for column in COLUMNS), flush=True)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--session-seconds", type=float, default=2.0)
    parser.add_argument("--killed", nargs="+", choices=_PLACES, default=list(_PLACES))
    options = parser.parse_args()
    with servers() as at:
        rows = asyncio.run(measure(at, options))
    print(json.dumps({"rows": rows, "session_seconds": options.session_seconds, "load": os.getloadavg()}))


if __name__ == "__main__":
    main()
