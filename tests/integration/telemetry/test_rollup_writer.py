"""What the database refuses costs the rows that it refuses, and no others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.history.stream_records import RollupRecord
from evenkeel.services.common.postgres.database import create_engine
from evenkeel.services.telemetry.adapters.rollup_writer import RollupWriter
from evenkeel.services.telemetry.domain.rollups import FinishedWindow
from evenkeel.services.telemetry.metrics import TelemetryMetrics
from tests.integration.history.seed import rollup

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

DEADLINE_SECONDS = 100.0
TOO_LARGE = 1 << 40


@pytest_asyncio.fixture
async def engine(fresh_database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database_url, application_name="test", statement_timeout_seconds=60.0)
    yield engine
    await engine.dispose()


async def write(engine: AsyncEngine, rows: Sequence[RollupRecord]) -> dict[str, float]:
    """Writes rows, and how many had which outcome."""
    registry = CollectorRegistry()
    writer = RollupWriter(engine, TelemetryMetrics(registry), max_rows=10_000)
    writer.put(FinishedWindow(record=row, first_offset=0) for row in rows)
    running = asyncio.create_task(writer.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        while registry.get_sample_value("evenkeel_telemetry_rollups_waiting"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    name = "evenkeel_telemetry_rollups_total"
    outcomes = ("written", "known", "refused")
    return {each: registry.get_sample_value(name, {"outcome": each}) or 0.0 for each in outcomes}


async def test_rows_that_the_database_refuses_take_no_others_with_them(engine: AsyncEngine) -> None:
    rows = [rollup(0, job_id=f"job-{number % 3}")._replace(rank=number) for number in range(1500)]
    refused = {7, 8, 640, 1499}
    mixed = [
        row._replace(node="a\0b") if number == 640 else row._replace(rank=TOO_LARGE) if number in refused else row
        for number, row in enumerate(rows)
    ]
    assert await write(engine, mixed) == {"written": 1496, "known": 0, "refused": 4}
    async with engine.connect() as connection:
        kept = {tuple(row) for row in await connection.execute(text("SELECT job_id, rank FROM rank_rollups"))}
    assert kept == {(row.job_id, row.rank) for number, row in enumerate(rows) if number not in refused}
    assert await write(engine, mixed) == {"written": 0, "known": 1496, "refused": 4}


async def test_what_is_no_rows_fault_is_not_tried_row_by_row(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE rank_rollups RENAME COLUMN tokens TO words"))
    assert await write(engine, [rollup(number) for number in range(3)]) == {"written": 0, "known": 0, "refused": 3}
