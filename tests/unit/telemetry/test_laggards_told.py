"""A rank that falls behind its peers is told: a line in the log, a metric, and a line when it is back."""

from collections.abc import Callable, Collection, Iterable

import pytest
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from contracts.topics import RECORDS
from services.common.kafka import Batch, ConsumedRecord, Partition
from services.common.kafka.records import Message
from services.telemetry.domain.rollups import FinishedWindow
from services.telemetry.handler import TelemetryHandler
from services.telemetry.metrics import TelemetryMetrics
from tests.fakes.kafka import FakeBroker, FakeProducer

PARTITION = Partition(RECORDS.name, 0)


class NothingSaid:
    """A tail of a topic that nobody has written to."""

    async def read_back(
        self, partition: Partition, *, enough: Callable[[ConsumedRecord], bool], least: int = 256, most: int = 20_000
    ) -> list[ConsumedRecord]:
        return []


class Rollups:
    """Keeps the rollups that it is given."""

    def __init__(self) -> None:
        self.rows: list[FinishedWindow] = []

    def put(self, rows: Iterable[FinishedWindow]) -> None:
        self.rows.extend(rows)

    def oldest_offset(self, jobs: Collection[str], *, opened_after_seconds: float) -> int | None:
        return None


async def first_offset(partition: Partition) -> int:
    return 0


class Service:
    def __init__(self) -> None:
        self.registry, self.now, self.offset = CollectorRegistry(), 1000.0, 0
        self.rollups = Rollups()
        self.handler = TelemetryHandler(
            FakeProducer(FakeBroker()),
            NothingSaid(),
            first_offset,
            self.rollups,  # type: ignore[arg-type]
            TelemetryMetrics(self.registry),
            rollup_iterations=10,
            job_idle_seconds=600.0,
            clock=lambda: self.now,
        )

    async def iteration(self, *ranks: tuple[int, int, int]) -> None:
        """A second in which each (rank, incarnation, iteration) sends its sample."""
        messages = []
        for rank, incarnation, iteration in ranks:
            record = pb.Record(job_id="job", rank=rank, incarnation=incarnation, sequence=self.offset)
            record.samples.add(iteration=iteration, wall_seconds=0.9, started_at_unix_seconds=self.now)
            consumed = ConsumedRecord(
                partition=PARTITION,
                offset=self.offset,
                timestamp_seconds=self.now,
                key=b"job",
                value=record.SerializeToString(),
                headers=[],
            )
            messages.append(Message(record=consumed, content=consumed))
            self.offset += 1
        await self.handler.handle(
            Batch(partition=PARTITION, messages=messages, next_offset=self.offset, received_at_seconds=self.now)
        )
        self.now += 1.0
        await self.handler.tick(self.now)

    @property
    def num_behind(self) -> float | None:
        return self.registry.get_sample_value("evenkeel_telemetry_ranks_behind")

    def late(self) -> float | None:
        return self.registry.get_sample_value("evenkeel_telemetry_samples_total", {"outcome": "late"})


@pytest.mark.asyncio
async def test_who_starts_over_while_the_others_go_on_is_told_once_and_again_when_it_has_caught_up() -> None:
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(60):
        await service.iteration((0, 0, iteration), (1, 0, iteration), (2, 0, iteration))
    with capture_logs() as told:
        for iteration in range(60, 90):
            await service.iteration((0, 0, iteration), (1, 0, iteration), (2, 1, iteration - 60))
        (warning,) = told
        assert warning["log_level"] == "warning"
        assert "in no frame until it has caught up" in warning["event"]
        assert (warning["job_id"], warning["rank"], warning["incarnation"]) == ("job", 2, 1)
        assert warning["peers_at_iteration"] - warning["iteration"] in (59, 60)
        assert "index=" in warning["what_to_do"]
        assert service.num_behind == 1.0
        for iteration in range(90, 110):
            await service.iteration((0, 0, iteration), (1, 0, iteration), (2, 1, iteration))
    assert [line["event"] for line in told[1:]] == ["a rank has caught up"]
    # With its first one at the others' iteration it is waited for again, and the next one is in time.
    assert told[1]["late_samples"] == service.late() == 31
    assert service.num_behind == 0.0
    assert {(row.record.rank, row.record.incarnation) for row in service.rollups.rows} >= {(2, 0), (2, 1)}
