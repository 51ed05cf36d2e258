"""How many rank-samples a second telemetry and detector take in, and how that grows with the number of ranks.

``python -m benchmarks.telemetry_path`` prints a table and JSON. Figures per job size:

- ``join``: the pure joiner alone, per second of CPU time, so that a busy machine does not blur it;
- ``service``: decode, validate, join, roll up and encode, without Kafka, per second of CPU time: one core of it;
- ``detector``: decode, judge, encode what it finds, without Kafka and PostgreSQL, per second of CPU time;
- ``both``: telemetry and detector after one another on one core;
- ``kafka`` (with ``--kafka host:port``, or ``EVENKEEL_KAFKA_BOOTSTRAP_SERVERS``): through a real broker, records in,
  observations out and read back, per second of wall time; ranks, service and reader share this process. Latency is from
  the acknowledgement of a frame's last record to its observation in a reader's hands.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from prometheus_client import CollectorRegistry

from contracts.topics import OBSERVATIONS, RECORDS
from services.common.database import create_engine
from services.common.kafka import (
    ConsumedRecord,
    ConsumeLoop,
    DeadLetters,
    KafkaClientConfig,
    KafkaConsumer,
    KafkaProducer,
    OutgoingRecord,
    Partition,
)
from services.common.kafka.tail import KafkaTail
from services.common.metrics import KafkaMetrics
from services.detector.adapters.finding_codec import record_of
from services.detector.adapters.observation_codec import decode_observation
from services.detector.domain.detector import JobDetector
from services.telemetry.adapters.observation_codec import observation_record
from services.telemetry.adapters.record_decoder import decode_record, samples_of
from services.telemetry.adapters.rollup_writer import RollupWriter
from services.telemetry.domain.frames import FrameJoiner
from services.telemetry.domain.job_stream import JobStream
from services.telemetry.domain.observed import ArrivedSample
from services.telemetry.domain.rollups import RollupAggregator
from services.telemetry.handler import TelemetryHandler
from services.telemetry.metrics import TelemetryMetrics

RANKS = (8, 64, 512, 4096)
_MICRO_BATCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job size; rates are rank-samples per second, latencies from a frame's last record sent to it read back."""

    num_ranks: int
    join_per_second: float
    service_per_second: float
    detector_per_second: float
    both_per_second: float
    kafka_per_second: float | None = None
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None


def records(num_ranks: int, iterations: range, job_id: str) -> Iterator[bytes]:
    """Serialised records, one sample each, iteration by iteration."""
    for iteration in iterations:
        for rank in range(num_ranks):
            record = pb.Record(
                job_id=job_id, rank=rank, sequence=iteration, node=f"node-{rank // 8}", device=f"d{rank % 8}"
            )
            record.samples.add(
                iteration=iteration,
                started_at_unix_seconds=1.7e9 + iteration,
                wall_seconds=0.5,
                compute=pb.ComputeSeconds(forward=0.1, backward=0.2, optimizer=0.01, data=0.001),
                waiting=pb.WaitingSeconds(tensor=0.01, pipeline=0.1, gradient=0.02, vote=0.001),
                micro_batches=[
                    pb.MicroBatch(index=index, tokens=4096, sum_of_squares=1e6) for index in range(_MICRO_BATCHES)
                ],
                position=pb.Position(
                    replica=rank // 8, stage=rank % 8, forward_flops_per_token=1e9, backward_multiple=2.0
                ),
            )
            yield record.SerializeToString()


def measure_join(num_ranks: int, num_samples: int) -> float:
    """Rank-samples per second of CPU time through the joiner alone."""
    num_iterations = max(3, num_samples // num_ranks)
    samples = [
        ArrivedSample(rank, 0, "node", "device", 0, iteration, 0.5, 0, None)
        for iteration in range(num_iterations)
        for rank in range(num_ranks)
    ]
    joiner = FrameJoiner()
    began_seconds = time.process_time()
    num_frames = sum(len(joiner.add(sample, 0.0)) for sample in samples)
    seconds = time.process_time() - began_seconds
    assert num_frames == num_iterations, num_frames
    return len(samples) / seconds


def measure_services(num_ranks: int, num_samples: int) -> tuple[float, float]:
    """Rank-samples per second of CPU time through telemetry, and through the detector; no Kafka, no PostgreSQL."""
    num_iterations = max(3, num_samples // num_ranks)
    consumed = [
        ConsumedRecord(
            partition=Partition(RECORDS.name, 0), offset=offset, timestamp_seconds=0.0, key=b"job", value=value
        )
        for offset, value in enumerate(records(num_ranks, range(num_iterations), "job"))
    ]
    stream, rollups = JobStream("job"), RollupAggregator("job")
    observed: list[OutgoingRecord] = []
    began_seconds = time.process_time()
    for each in consumed:
        message = decode_record(each)
        for sample in samples_of(message, offset=each.offset):
            observed.extend(
                observation_record("job", numbered, input_offset=each.offset) for numbered in stream.sample(sample, 0.0)
            )
            rollups.add(sample, sample.payload, loss=None, now_seconds=0.0)
    telemetry_seconds = time.process_time() - began_seconds
    assert len(observed) == num_iterations, len(observed)
    detector, num_found = JobDetector("job"), 0
    began_seconds = time.process_time()
    for offset, record in enumerate(observed):
        observation, _ = decode_observation(
            ConsumedRecord(
                partition=Partition(OBSERVATIONS.name, 0),
                offset=offset,
                timestamp_seconds=0.0,
                key=b"job",
                value=record.value,
            )
        )
        num_found += len([record_of(finding) for finding in detector.observe(observation)])
    detector_seconds = time.process_time() - began_seconds
    return len(consumed) / telemetry_seconds, len(consumed) / detector_seconds


async def measure_kafka(bootstrap: str, num_ranks: int, num_samples: int) -> tuple[float, list[float]]:
    """Rank-samples per second through a real broker at full speed; then latencies, frame by frame."""
    job_id, unique = f"bench-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:8]
    num_iterations = max(3, num_samples // num_ranks)
    assigned = asyncio.Event()
    registry = CollectorRegistry()
    kafka_metrics, metrics = KafkaMetrics(registry), TelemetryMetrics(registry)
    config = KafkaClientConfig(bootstrap_servers=bootstrap, client_id=f"bench-{unique}", security={})
    producer, tail = KafkaProducer(config, kafka_metrics), KafkaTail(config)
    consumer = KafkaConsumer(config, topics=[RECORDS.name], group=f"bench-{unique}")
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="benchmark")

    async def skip_the_past(partition: Partition) -> int:
        return int(ends[TopicPartition(*partition)])

    handler = TelemetryHandler(
        producer,
        tail,
        skip_the_past,
        RollupWriter(engine, metrics, max_rows=100_000),
        metrics,
        rollup_iterations=16,
        job_idle_seconds=3600.0,
    )
    loop = ConsumeLoop(
        consumer,
        handler,
        decoders={RECORDS.name: decode_record},
        dead_letters=DeadLetters(producer, kafka_metrics, group="bench"),
        metrics=kafka_metrics,
        on_assigned=lambda _: assigned.set(),
    )
    ranks = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, max_batch_size=256 * 1024)
    reader = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="latest", fetch_max_wait_ms=100
    )
    await ranks.start()
    await reader.start()
    partitions = [TopicPartition(OBSERVATIONS.name, number) for number in range(OBSERVATIONS.num_partitions)]
    reader.assign(partitions)
    await reader.seek_to_end(*partitions)
    inputs = [TopicPartition(RECORDS.name, number) for number in range(RECORDS.num_partitions)]
    ends = await reader.end_offsets(inputs)
    key = job_id.encode()
    task = asyncio.create_task(loop.run())
    await assigned.wait()
    began_seconds = time.perf_counter()
    for value in records(num_ranks, range(num_iterations), job_id):
        await ranks.send(RECORDS.name, value, key=key)
    await _read_frames(reader, key, num_iterations)
    seconds = time.perf_counter() - began_seconds
    latencies = []
    for iteration in range(num_iterations, num_iterations + 50):
        for value in records(num_ranks, range(iteration, iteration + 1), job_id):
            last = await ranks.send(RECORDS.name, value, key=key)
        await last
        sent_seconds = time.perf_counter()
        await _read_frames(reader, key, 1)
        latencies.append(time.perf_counter() - sent_seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for client in (ranks, reader, producer, tail):
        await client.stop()
    await engine.dispose()
    return num_iterations * num_ranks / seconds, latencies


async def _read_frames(reader: AIOKafkaConsumer, key: bytes, count: int) -> None:
    async with asyncio.timeout(300):
        while count > 0:
            for fetched in (await reader.getmany(timeout_ms=100)).values():
                count -= sum(
                    each.key == key and pb.Observation.FromString(each.value).HasField("frame") for each in fetched
                )


def measure(num_ranks: int, num_samples: int, bootstrap: str | None) -> Row:
    """All figures of one job size."""
    per_second, latencies = asyncio.run(measure_kafka(bootstrap, num_ranks, num_samples)) if bootstrap else (None, [])
    telemetry, detector = measure_services(num_ranks, num_samples)
    return Row(
        num_ranks=num_ranks,
        join_per_second=measure_join(num_ranks, num_samples * 4),
        service_per_second=telemetry,
        detector_per_second=detector,
        both_per_second=1.0 / (1.0 / telemetry + 1.0 / detector),
        kafka_per_second=per_second,
        latency_p50_seconds=statistics.median(latencies) if latencies else None,
        latency_p99_seconds=sorted(latencies)[-1 - len(latencies) // 100] if latencies else None,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table, then one line of JSON."""
    parser = argparse.ArgumentParser(description="rank-samples per second through telemetry")
    parser.add_argument("--kafka", default=os.environ.get("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS"), metavar="HOST:PORT")
    parser.add_argument("--samples", type=int, default=50_000, help="rank-samples per measurement")
    options = parser.parse_args(arguments)
    names = ("join/s", "service/s", "detector/s", "both/s", "kafka/s")
    print(f"{'ranks':>6} " + " ".join(f"{name:>10}" for name in names) + f" {'p50 ms':>8} {'p99 ms':>8}")
    rows = []
    for num_ranks in RANKS:
        row = measure(num_ranks, options.samples, options.kafka)
        rows.append(asdict(row))
        kafka = f"{row.kafka_per_second:>10.0f}" if row.kafka_per_second else f"{'-':>10}"
        latency = " ".join(
            f"{each * 1000:>8.1f}" if each else f"{'-':>8}"
            for each in (row.latency_p50_seconds, row.latency_p99_seconds)
        )
        print(
            f"{num_ranks:>6} {row.join_per_second:>10.0f} {row.service_per_second:>10.0f} "
            f"{row.detector_per_second:>10.0f} {row.both_per_second:>10.0f} {kafka} {latency}",
            flush=True,
        )
    print(json.dumps({"benchmark": "telemetry_path", "rows": rows}))


if __name__ == "__main__":
    main()
