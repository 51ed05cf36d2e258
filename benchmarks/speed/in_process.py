"""The services' own work without any server: per second of CPU time, so that a busy machine blurs it less."""

import asyncio
import gc
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from benchmarks.speed.held import held_bytes
from benchmarks.speed.jobs import SyntheticJob
from evenkeel.contracts.mac import job_key, signed
from evenkeel.contracts.topics import BATCHES, FRAMES, record_headers
from evenkeel.services.common.kafka import Batch, ConsumedRecord, OutgoingRecord, Partition
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.common.worker import Worker
from evenkeel.services.detector.adapters.finding_codec import record_of, to_be_told
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.services.telemetry.adapters.job_keys import JobKeys
from evenkeel.services.telemetry.adapters.rollup_writer import RollupWriter
from evenkeel.services.telemetry.adapters.tail import Tail
from evenkeel.services.telemetry.handler import TelemetryHandler
from evenkeel.services.telemetry.metrics import TelemetryMetrics

_WHERE = Partition(BATCHES.name, 0)
_JOB_TOKEN = "a-token-of-this-job"  # noqa: S105 - guards nothing
# What a fetch brings of small records.
_BATCH = 8192
_AT_ONCE = 64
_WARM_FRAMES = 60
# Making frames empties the caches: whoever takes only a few between has its work beside them again each time.
_SAMPLES_AT_ONCE = 16_000


class _Kept(Tail):
    """A producer that keeps what it is given, in front of a tail with nothing in it."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []

    async def send_all(self, records: Sequence[OutgoingRecord]) -> None:
        self.records.extend(records)

    async def read_back(
        self, partitions: Collection[Partition], *, enough: Callable[[ConsumedRecord], bool]
    ) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        return {}


def detector_per_second(num_ranks: int, *, seconds: float) -> float:
    """Rank-samples per second of CPU time through the pure detector."""
    job, detector = SyntheticJob("job", num_ranks), JobDetector("job")
    for frame in job.frames(range(_WARM_FRAMES)):
        detector.observe(frame)
    spent, done = 0.0, _WARM_FRAMES
    while spent < seconds:
        frames = list(job.frames(range(done, done + max(8, _SAMPLES_AT_ONCE // num_ranks))))
        began_seconds = time.process_time()
        for frame in frames:
            detector.observe(frame)
        spent += time.process_time() - began_seconds
        done += len(frames)
    return (done - _WARM_FRAMES) * num_ranks / spent


def detector_bytes_per_rank(num_ranks: int, *, num_iterations: int) -> tuple[float, float]:
    """Memory that a job's detector holds per rank: early on, and after many iterations."""
    job, detector, found = SyntheticJob("job", num_ranks), JobDetector("job"), []
    for frame in job.frames(range(num_iterations)):
        detector.observe(frame)
        if frame.iteration in (2 * _WARM_FRAMES, num_iterations - 1):
            found.append(held_bytes(detector) / num_ranks)
    return found[0], found[-1]


def consumed(values: Iterable[bytes], topic: str, *, key: bytes) -> list[ConsumedRecord]:
    """Records as the broker would give them, headers and all."""
    headers = record_headers(BATCHES, "benchmark")
    return [
        ConsumedRecord(Partition(topic, 0), offset, 0.0, key, value, headers) for offset, value in enumerate(values)
    ]


def services_per_second(num_ranks: int, num_samples: int) -> tuple[float, float]:
    """Rank-samples per second of CPU time through telemetry, and through the detector; no Kafka, no PostgreSQL."""
    num_iterations = max(4, num_samples // num_ranks)
    key = job_key("job", _JOB_TOKEN)
    batches = [signed(each, key) for each in SyntheticJob("job", num_ranks).records(range(num_iterations))]
    records = consumed(batches, BATCHES.name, key=b"job")
    gc.collect()
    gc.freeze()
    try:
        observations, telemetry_seconds = asyncio.run(_through_telemetry(records))
    finally:
        gc.unfreeze()
    detector, num_judged, num_found = JobDetector("job"), 0, 0
    read = consumed((each.value or b"" for each in observations), FRAMES.name, key=b"job")
    began_seconds = time.process_time()
    for first in range(0, len(read), _AT_ONCE):
        decoded = [one for each in read[first : first + _AT_ONCE] for one in decode_observations(each).observations]
        num_judged += len(decoded)
        findings = [finding for one in decoded for finding in detector.observe(one)]
        num_found += len([record_of(finding) for finding in to_be_told(findings)])
    judge_seconds = time.process_time() - began_seconds
    assert num_judged == num_iterations, num_judged
    done = num_iterations * num_ranks
    return done / telemetry_seconds, done / judge_seconds


async def _through_telemetry(records: Sequence[ConsumedRecord]) -> tuple[list[OutgoingRecord], float]:
    kept, partition = _Kept(), _WHERE
    metrics = TelemetryMetrics(CollectorRegistry())
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="benchmark")

    async def from_the_start(partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return dict.fromkeys(partitions, 0)

    async def tokens(_: Sequence[str] | None) -> Mapping[str, str]:
        return {"job": _JOB_TOKEN}

    async def none_registered(_: Sequence[tuple[str, int, int]]) -> Collection[tuple[str, int, int]]:
        return ()

    job_keys = JobKeys(tokens, none_registered, allow_unsigned=False)
    await job_keys.load()
    handler = TelemetryHandler(
        kept,
        kept,
        from_the_start,
        lambda partition, next_offset: 0.0,
        RollupWriter(engine, metrics, max_rows=100_000),
        job_keys,
        metrics,
        worker=Worker(),
        rollup_iterations=16,
        job_idle_seconds=3600.0,
    )
    await handler.assigned([partition])
    began_seconds = time.process_time()
    for first in range(0, len(records), _BATCH):
        taken = records[first : first + _BATCH]
        next_offset = first + len(taken)
        await handler.handle(
            Batch(partition=partition, records=taken, next_offset=next_offset, received_at_seconds=time.time())
        )
        await handler.tick(time.time())
    seconds = time.process_time() - began_seconds
    await engine.dispose()
    return kept.records, seconds
