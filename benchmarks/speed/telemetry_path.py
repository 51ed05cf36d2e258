"""How many rank-samples a second telemetry and detector take in, and how that grows with the number of ranks.

``python -m benchmarks.speed.telemetry_path`` prints a table and one line of JSON. Per job size:

- ``detector``: the pure detector, frames as arrays, per second of CPU time (one core): frames one by one, and in
  blocks, as the service takes what is there already;
- ``B/rank``: its memory per rank early on, and after many iterations (``--endurance`` sets how many);
- ``service``: decode, validate, join, sum up, encode, and ``judge``: decode, detect, encode; neither Kafka nor
  PostgreSQL, per second of CPU time;
- ``kafka 1``, ``kafka 4``: both services as processes with a real Kafka and PostgreSQL of their own, working off what
  has piled up, per second of wall time, everything on this machine, 1 or 4 samples a record; and what a rank-sample
  costs telemetry and detector in microseconds of CPU time;
- ``kafka sdk``: the same with as many samples a record as the SDK would send if the job's ranks made 100,000 a second:
  it looks every 20 ms for what is new, and sends 256 at most in one record;
- ``p50``, ``p99``: from the acknowledgement of an iteration's last sample to a finding about it in a reader's hands.

``--no-kafka`` leaves out what needs servers. Numbers per second of CPU time suffer less from a busy machine than those
of wall time, but they do: the load is printed.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.speed.in_process import detector_bytes_per_rank, detector_per_second, services_per_second
from benchmarks.speed.live import (
    Servers,
    Services,
    backlog_per_second,
    finding_delays,
    percentiles,
    running_services,
    servers,
)

RANKS = (8, 64, 512, 4096, 16_384)
# A frame waits for the slowest rank: telemetry keeps eight open at most.
_SAMPLES_PER_RECORD = (1, 4)
_SDK, _SDK_LOOK_SECONDS, _SDK_MOST = 0, 0.02, 256
_AIM_PER_SECOND = 100_000
# Jobs side by side, iterations, seconds between two iterations: many findings of small jobs, fewer of large ones.
_PACE = {8: (8, 80, 0.1), 64: (4, 80, 0.1), 512: (1, 100, 0.1), 4096: (1, 40, 0.4), 16_384: (1, 20, 1.2)}


@dataclass(slots=True, kw_only=True)
class Row:
    """One job size; what was not measured is None."""

    num_ranks: int
    detector_per_cpu_second: float
    detector_bytes_per_rank: tuple[float, float]
    telemetry_per_cpu_second: float
    judge_per_cpu_second: float
    kafka_per_second: dict[int, float] = field(default_factory=dict)
    cpu_microseconds: dict[int, tuple[float, float]] = field(default_factory=dict)
    delay_p50_seconds: float | None = None
    delay_p99_seconds: float | None = None
    num_findings: int | None = None


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table, then one line of JSON."""
    parser = argparse.ArgumentParser(description="rank-samples per second through telemetry and detector")
    parser.add_argument("--no-kafka", action="store_true", help="only what needs no servers")
    parser.add_argument("--samples", type=int, default=65_536, help="rank-samples per measurement")
    parser.add_argument("--endurance", type=int, default=1_000, help="iterations of the memory measurement")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, choices=RANKS, help="job sizes")
    options = parser.parse_args(arguments)
    load_before = os.getloadavg()[0]
    rows = [_in_process(num_ranks, options.samples, options.endurance) for num_ranks in options.ranks]
    if not options.no_kafka:
        with tempfile.TemporaryDirectory(prefix="evenkeel-speed-") as folder:
            asyncio.run(_live(rows, Path(folder), options.samples))
    _print_table(rows)
    print(f"{os.cpu_count()} cores; load {load_before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")
    print(json.dumps({"benchmark": "telemetry_path", "rows": [asdict(row) for row in rows]}))


def _in_process(num_ranks: int, num_samples: int, endurance: int) -> Row:
    telemetry, judge = services_per_second(num_ranks, num_samples)
    _tell(f"{num_ranks} ranks: telemetry {telemetry:.0f}/s, detector with codec {judge:.0f}/s of CPU time")
    return Row(
        num_ranks=num_ranks,
        detector_per_cpu_second=detector_per_second(num_ranks, seconds=1.5),
        # Large jobs take long and grow no differently.
        detector_bytes_per_rank=detector_bytes_per_rank(
            num_ranks, num_iterations=max(200, endurance if num_ranks <= 64 else endurance * 64 // num_ranks)
        ),
        telemetry_per_cpu_second=telemetry,
        judge_per_cpu_second=judge,
    )


async def _live(rows: Sequence[Row], folder: Path, num_samples: int) -> None:
    with servers() as at:
        async with running_services(at, folder) as services:
            for row in rows:
                try:
                    await _measure_live(row, at, services, num_samples)
                except RuntimeError as error:
                    _tell(f"{row.num_ranks} ranks: {error}")


async def _measure_live(row: Row, at: Servers, services: Services, num_samples: int) -> None:
    as_sdk = min(_SDK_MOST, max(1, round(_AIM_PER_SECOND / row.num_ranks * _SDK_LOOK_SECONDS)))
    for name in (*_SAMPLES_PER_RECORD, _SDK):
        samples_per_record = name or as_sdk
        per_second, spent = await backlog_per_second(
            at, services, row.num_ranks, num_samples, samples_per_record=samples_per_record
        )
        row.kafka_per_second[name] = per_second
        _tell(f"{row.num_ranks} ranks, {samples_per_record} samples a record: {per_second:.0f}/s, CPU seconds {spent}")
        done = max(8, num_samples // row.num_ranks) * row.num_ranks
        row.cpu_microseconds[name] = (1e6 * spent[0] / done, 1e6 * spent[1] / done)
    num_jobs, num_iterations, interval_seconds = _PACE[row.num_ranks]
    delays = await finding_delays(
        at, row.num_ranks, num_jobs=num_jobs, num_iterations=num_iterations, interval_seconds=interval_seconds
    )
    row.delay_p50_seconds, row.delay_p99_seconds = percentiles(delays)
    row.num_findings = len(delays)
    _tell(f"{row.num_ranks} ranks: {len(delays)} findings, median {1000 * row.delay_p50_seconds:.0f} ms")


def _tell(text: str) -> None:
    """On standard error, so that a long run shows where it is."""
    print(text, file=sys.stderr, flush=True)


def _print_table(rows: Sequence[Row]) -> None:
    names = (
        "detector/s",
        "B/rank",
        "service/s",
        "judge/s",
        "kafka 1/s",
        "kafka 4/s",
        "kafka sdk/s",
        "CPU us 1",
        "CPU us 4",
        "CPU us sdk",
        "p50 ms",
        "p99 ms",
    )
    print(f"{'ranks':>6} " + " ".join(f"{name:>12}" for name in names))
    for row in rows:
        early, late = row.detector_bytes_per_rank
        cells = [
            f"{row.detector_per_cpu_second:.0f}",
            f"{early:.0f}, {late:.0f}",
            f"{row.telemetry_per_cpu_second:.0f}",
            f"{row.judge_per_cpu_second:.0f}",
            *(
                f"{row.kafka_per_second[each]:.0f}" if each in row.kafka_per_second else "-"
                for each in (*_SAMPLES_PER_RECORD, _SDK)
            ),
            *(
                "{:.1f} + {:.1f}".format(*row.cpu_microseconds[each]) if each in row.cpu_microseconds else "-"
                for each in (*_SAMPLES_PER_RECORD, _SDK)
            ),
            *(
                f"{1000 * delay:.0f}" if delay is not None else "-"
                for delay in (row.delay_p50_seconds, row.delay_p99_seconds)
            ),
        ]
        print(f"{row.num_ranks:>6} " + " ".join(f"{cell:>12}" for cell in cells))


if __name__ == "__main__":
    main()
