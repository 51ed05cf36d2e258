"""The telemetry service's handler without servers, its clock in the test's hands."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from evenkeel.contracts.columns import tell_process
from evenkeel.contracts.frames import Frames, read_frames
from evenkeel.contracts.mac import JobKey, signed
from evenkeel.contracts.topics import BATCHES
from evenkeel.services.common.kafka import Batch, ConsumedRecord, OutgoingRecord, Partition, Rejection
from evenkeel.services.common.worker import Worker
from evenkeel.services.telemetry.adapters.job_keys import JobKeys
from evenkeel.services.telemetry.domain.rollups import FinishedWindow
from evenkeel.services.telemetry.handler import TelemetryHandler
from evenkeel.services.telemetry.metrics import TelemetryMetrics
from evenkeel.telemetry.v2 import batch_pb2, frames_pb2
from tests.unit.telemetry.joining import Seen, seen
from tests.unit.telemetry.samples import Sample

PARTITION = Partition(BATCHES.name, 0)


class Said:
    """The tail of what the service has sent."""

    def __init__(self) -> None:
        self.records: list[ConsumedRecord] = []

    def add(self, record: OutgoingRecord) -> None:
        self.records.append(
            ConsumedRecord(
                partition=Partition(record.topic, 0),
                offset=len(self.records),
                timestamp_seconds=0.0,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
        )

    async def read_back(
        self, partitions: Collection[Partition], *, enough: Callable[[ConsumedRecord], bool]
    ) -> Mapping[Partition, Sequence[ConsumedRecord]]:
        return dict.fromkeys(partitions, self.records)


class Rollups:
    """Keeps the rollups that it is given."""

    def __init__(self) -> None:
        self.rows: list[FinishedWindow] = []

    def put(self, rows: Iterable[FinishedWindow]) -> None:
        self.rows.extend(rows)

    def first_offsets(self, jobs: Collection[str]) -> list[int]:
        return []


class Tokens:
    """The tokens of the jobs that are registered, which can be away.

    Args:
        tokens: By job.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self.tokens, self.asked = dict(tokens), 0
        self.away = False

    async def __call__(self, job_ids: Sequence[str] | None) -> Mapping[str, str]:
        self.asked += 1
        if self.away:
            raise ConnectionRefusedError("away")
        return {job_id: token for job_id, token in self.tokens.items() if job_ids is None or job_id in job_ids}


def batch_of_nothing(rank: int, incarnation: int = 0) -> batch_pb2.Batch:
    """A batch without iterations."""
    batch = batch_pb2.Batch()
    tell_process(batch, job_id="job", rank=rank, incarnation=incarnation)
    return batch


async def first_offsets(partitions: Collection[Partition]) -> Mapping[Partition, int]:
    return dict.fromkeys(partitions, 0)


class Service:
    """The handler; it is the producer, too: what it sends is kept, and takes a while.

    Args:
        seconds_to_send: How long sending takes.
        tokens: Of the jobs that are registered.
    """

    def __init__(self, *, seconds_to_send: float = 0.0, tokens: Mapping[str, str] | None = None) -> None:
        self.registry, self.now, self.offset = CollectorRegistry(), 1000.0, 0
        self.rollups = Rollups()
        self.said = Said()
        self.sent: list[frames_pb2.Observation] = []
        self.set_aside: list[Rejection] = []
        self.seconds_to_send = seconds_to_send
        self.job_keys = JobKeys(Tokens(tokens or {}), self._registered_processes, allow_unsigned=True)
        self.registered: set[tuple[str, int, int]] = set()
        self.history_is_away = self.kafka_is_away = False
        self.read_at_seconds: float | None = None
        self.handler = TelemetryHandler(
            self,
            self.said,
            first_offsets,
            lambda partition, next_offset: None if self.kafka_is_away or self.read_at_seconds else 0.0,
            self.rollups,  # type: ignore[arg-type]
            self.job_keys,
            TelemetryMetrics(self.registry),
            worker=Worker(),
            rollup_iterations=10,
            job_idle_seconds=600.0,
            clock=lambda: self.read_at_seconds or self.now,
        )

    async def _registered_processes(self, asked: Sequence[tuple[str, int, int]]) -> set[tuple[str, int, int]]:
        if self.history_is_away:
            raise ConnectionRefusedError("away")
        return self.registered & set(asked)

    async def send_all(self, records: Sequence[OutgoingRecord]) -> None:
        for record in records:
            self.said.add(record)
        for record in records:
            self.sent.append(frames_pb2.Observation.FromString(record.value or b""))
        self.now += self.seconds_to_send

    async def iteration(self, *ranks: tuple[int, int, int], jobs: Sequence[str] = ("job",)) -> None:
        """A second in which each (rank, incarnation, iteration) sends its sample."""
        records = []
        for job_id in jobs:
            for rank, incarnation, iteration in ranks:
                one = Sample(rank, iteration, incarnation=incarnation, wall_seconds=0.9)
                records.append(one._replace(started_at_unix_seconds=self.now).message(job_id))
        await self._take(records)
        self.now += 1.0
        await self.handler.tick(self.now)

    async def pass_time(self, seconds: float) -> None:
        """Nothing comes, and the broker says so."""
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            await self.handler.tick(self.now)

    async def kafka_goes_for(self, seconds: float) -> None:
        """Nothing can come, and nobody says so."""
        self.kafka_is_away = True
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            await self.handler.tick(self.now)
        self.kafka_is_away = False

    async def report(self, operation_count: int, *ranks: int) -> None:
        """Ranks tell where they are; no time passes."""
        records = [batch_of_nothing(rank) for rank in ranks]
        for record in records:
            record.num_progress[0] = 1
            record.progress.add(at_unix_seconds=self.now, operation_count=operation_count, operation="forward")
        await self._take(records)

    async def _take(self, records: Sequence[batch_pb2.Batch], key: JobKey | None = None) -> None:
        if self.offset == 0:
            await self.job_keys.load()
        taken = []
        for record in records:
            record.sequence[0] = self.offset
            consumed = ConsumedRecord(
                partition=PARTITION,
                offset=self.offset,
                timestamp_seconds=self.now,
                key=record.job_id[0].encode(),
                value=signed(record.SerializeToString(), key),
                headers=[],
            )
            taken.append(consumed)
            self.offset += 1
        self.set_aside += await self.handler.handle(
            Batch(
                partition=PARTITION,
                records=taken,
                next_offset=self.offset,
                received_at_seconds=self.read_at_seconds or self.now,
            )
        )

    async def take(self, *records: batch_pb2.Batch, key: JobKey | None = None) -> None:
        """These records come, signed by a key; no time passes."""
        await self._take(records, key)

    def frames(self, job_id: str = "job") -> list[Seen]:
        """The frames that were told."""
        return seen(self._told(job_id))

    def _told(self, job_id: str) -> list[Frames]:
        told = [one for one in self.sent if one.job_id == job_id and one.HasField("frames")]
        return [read_frames(one.frames) for one in told]

    @property
    def num_behind(self) -> float | None:
        return self.registry.get_sample_value("evenkeel_telemetry_ranks_behind")

    def late(self) -> float | None:
        return self.registry.get_sample_value("evenkeel_telemetry_samples_total", {"outcome": "late"})
