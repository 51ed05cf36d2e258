"""Writes rollups into PostgreSQL in batches, beside the stream: frames never wait for it.

While the database is away rows wait in a bounded buffer; when it is full the oldest are dropped and counted. Rows that
the database refuses are dropped and counted too, and no others with them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import structlog
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from evenkeel.history.writes import insert_rollups
from evenkeel.services.common.backoff import Backoff, Reachability
from evenkeel.services.common.postgres.database import UNREADABLE, is_database_away
from evenkeel.services.telemetry.domain.rollups import FinishedWindow
from evenkeel.services.telemetry.metrics import TelemetryMetrics

_BATCH_ROWS = 1000
# Ranks end their windows together: a short wait makes one statement of many.
_GATHER_SECONDS = 0.2
_LAST_WRITE_SECONDS = 3.0
_MOST_NAMED = 8

_log = structlog.get_logger(__name__)

_Refused = tuple[FinishedWindow, DBAPIError]


class RollupWriter:
    """A bounded buffer and the task that empties it."""

    def __init__(
        self,
        engine: AsyncEngine,
        metrics: TelemetryMetrics,
        *,
        max_rows: int,
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            engine: The database.
            metrics: Counts.
            max_rows: Most rows in the buffer.
            on_change: Told (reachable, problem) when the database goes away or comes back.
        """
        self._engine = engine
        self._metrics = metrics
        self._max_rows = max_rows
        self._reachability = Reachability("postgres", on_change)
        self._waiting: deque[FinishedWindow] = deque()
        self._news = asyncio.Event()

    def put(self, windows: Iterable[FinishedWindow]) -> None:
        """Queues rows; never blocks."""
        for window in windows:
            if len(self._waiting) >= self._max_rows:
                self._waiting.popleft()
                self._metrics.rollups.labels("dropped").inc()
            self._waiting.append(window)
            self._news.set()
        self._metrics.rollups_waiting.set(len(self._waiting))

    def first_offsets(self, job_ids: Iterable[str]) -> list[int]:
        """Offset of the oldest record in each row of these jobs that is not written."""
        wanted = set(job_ids)
        return [each.first_offset for each in self._waiting if each.record.job_id in wanted]

    async def run(self) -> None:
        """Writes until cancelled; then tries once more to write what is left."""
        backoff = Backoff()
        try:
            while True:
                await self._news.wait()
                await asyncio.sleep(_GATHER_SECONDS)
                if await self._write_all():
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next_seconds())
        finally:
            await self._write_last()

    async def _write_all(self) -> bool:
        """False if the database is away; what is not written stays."""
        while self._waiting:
            batch = [self._waiting[index] for index in range(min(_BATCH_ROWS, len(self._waiting)))]
            try:
                num_new, refused = await self._write(batch)
            except UNREADABLE as error:
                self._reachability.down(error)
                return False
            self._reachability.up()
            self._count(len(batch), num_new, refused)
            # A full buffer may have dropped some of them meanwhile.
            done = {id(each) for each in batch}
            while self._waiting and id(self._waiting[0]) in done:
                self._waiting.popleft()
            self._metrics.rollups_waiting.set(len(self._waiting))
        self._news.clear()
        return True

    async def _write(self, rows: Sequence[FinishedWindow]) -> tuple[int, list[_Refused]]:
        """How many were new, and those that the database refuses, which are found by halves.

        Raises:
            DBAPIError, OSError, TimeoutError: The database is away.
        """
        try:
            async with self._engine.begin() as connection:
                return await insert_rollups(connection, [each.record for each in rows]), []
        except DBAPIError as error:
            if is_database_away(error):
                raise
            if len(rows) == 1 or not isinstance(error, DataError | IntegrityError):  # no row's fault
                return 0, [(each, error) for each in rows]
        middle = len(rows) // 2
        first_new, first_refused = await self._write(rows[:middle])
        second_new, second_refused = await self._write(rows[middle:])
        return first_new + second_new, first_refused + second_refused

    def _count(self, num_rows: int, num_new: int, refused: Sequence[_Refused]) -> None:
        self._metrics.rollups.labels("written").inc(num_new)
        self._metrics.rollups.labels("known").inc(num_rows - num_new - len(refused))
        if refused:
            self._metrics.rollups.labels("refused").inc(len(refused))
            job_ids = sorted({each.record.job_id for each, _ in refused})
            _log.error(
                "rollups refused by the database are dropped",
                rows=len(refused),
                job_ids=job_ids[:_MOST_NAMED],
                exc_info=refused[0][1],
            )

    async def _write_last(self) -> None:
        try:
            async with asyncio.timeout(_LAST_WRITE_SECONDS):
                await self._write_all()
        except TimeoutError:
            _log.warning("no time to write the last rollups; a restart makes them again", rows=len(self._waiting))
