"""One scheduler at a time works on a history: others wait until it is gone, and then load what it has left.

Two at once would each act on what it has seen alone, and park ranks for plans that the other knows nothing of. The lock
is one of PostgreSQL's sessions: it ends with the process that holds it, however that ends. A session that asks nothing
for a while is ended by the server, so that a machine that vanished and a process that is frozen hold nobody up.
"""

import asyncio
import time
from typing import Any

import structlog
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.database import DATABASE_AWAY

_KEY = 0x65766B736368  # "evksch"
_TRY_SECONDS = 0.2
_LOCK = text("SELECT pg_try_advisory_lock(:key)")
# PostgreSQL shows a key of 64 bits in two halves.
_HOLDER = text(
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND (classid::bigint << 32) + objid::bigint = :key"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_THERE = text("SELECT :key")

_log = structlog.get_logger(__name__)


class SupersededError(RuntimeError):
    """Another scheduler took the history over while this one had lost its session: only a fresh start knows what is."""


class SoleScheduler:
    """The lock of one process. Belongs to the event loop's thread."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        reachability: Reachability,
        look_seconds: float = 1.0,
        patience_seconds: float = 10.0,
        silence_seconds: float = 15.0,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            engine: The database; one of its connections is held for good.
            reachability: Told whether the database answers.
            look_seconds: Between two looks at whether the session is there.
            patience_seconds: How long a session of ours that was cut off may hold the lock against us.
            silence_seconds: A session that asks nothing for so long loses the lock; several times ``look_seconds``.
        """
        self._engine = engine
        self._reachability = reachability
        self._look_seconds = look_seconds
        self._patience_seconds = patience_seconds
        self._silence_seconds = silence_seconds
        self._connection: AsyncConnection | None = None
        self._session: int | None = None

    async def acquire(self) -> None:
        """Returns when no other scheduler works on this history; waits for the database, too."""
        told = False
        while not await self._locked():
            if not told:
                told = True
                _log.warning("another scheduler works on this history: waiting until it is gone")
            await asyncio.sleep(_TRY_SECONDS)

    async def keep(self) -> None:
        """Looks after the lock until cancelled.

        Raises:
            SupersededError: Somebody else has it.
        """
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await self._ask(_THERE)
            except DATABASE_AWAY as error:
                self._reachability.down(error)
                await self.close()
                await self._again()

    async def close(self) -> None:
        """Gives the lock up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.invalidate()
            await connection.close()

    async def _again(self) -> None:
        ends, ours = None, self._session
        while not await self._locked():
            # Whoever lost its place must be gone soon: it is still in the consumer group, and on the ranks' streams.
            ends = ends or time.monotonic() + self._patience_seconds
            holder = await self._tried(_HOLDER)
            if holder not in (None, ours) or time.monotonic() > ends:
                raise SupersededError("another scheduler has taken this history over")
            await asyncio.sleep(_TRY_SECONDS)

    async def _locked(self) -> bool:
        return bool(await self._tried(_LOCK))

    async def _tried(self, question: TextClause) -> Any:
        async def try_it() -> Any:
            try:
                return await self._ask(question)
            except BaseException:
                await self.close()
                raise

        return await persist(try_it, transient=DATABASE_AWAY, reachability=self._reachability)

    async def _ask(self, question: TextClause) -> Any:
        if self._connection is None:
            connection = await self._engine.connect()
            self._connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await self._connection.execute(text(f"SET idle_session_timeout = {round(self._silence_seconds * 1000)}"))
            self._session = await self._connection.scalar(text("SELECT pg_backend_pid()"))
        return await self._connection.scalar(question, {"key": _KEY})
