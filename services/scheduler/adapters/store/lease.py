"""One scheduler at a time is in charge of a history; the others stand by, and one of them takes over within seconds.

Whoever is in charge says so every 0.3 s. One that has not for 1.2 s has lost its place: what it writes is refused by
the database, and what it asks of ranks by the ranks, which know the higher term. So a scheduler that was frozen, or cut
off from the database, does no harm when it goes on; it ends, and may stand by anew.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from evenkeel.history import writes
from evenkeel.history.stream_records import LeaseRecord
from evenkeel.services.common.backoff import Reachability, persist
from evenkeel.services.common.postgres.database import DATABASE_AWAY

NAME = "scheduler"
LEASE_SECONDS = 1.2
RENEW_SECONDS = 0.3
ACT_SECONDS = 0.9
"""From the beginning of the last renewal: less than the lease, so that nobody acts beside the next one."""
TRY_SECONDS = 0.2
_ASK_SECONDS = 5.0

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Lease:
    """The place of one process. Belongs to the event loop's thread."""

    def __init__(
        self,
        engine: AsyncEngine,
        holder: str,
        *,
        reachability: Reachability,
        on_leader: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            engine: The database; the names of its sessions end with ``/<holder>``.
            holder: A name that no other process has or had.
            reachability: Told whether the database answers.
            on_leader: Told the address of whoever is in charge instead, while this one stands by.
            clock: Seconds that only grow.
        """
        self._engine = engine
        self._holder = holder
        self._reachability = reachability
        self._on_leader = on_leader
        self._clock = clock
        self._lease: LeaseRecord | None = None
        self._renewed_at_seconds = float("-inf")

    @property
    def term(self) -> int:
        """Of this process; 0 = it was never in charge."""
        return 0 if self._lease is None else self._lease.term

    @property
    def holds(self) -> bool:
        """Whether it is certain that nobody else is in charge now."""
        return self._clock() < self._renewed_at_seconds + ACT_SECONDS

    async def acquire(self, address: str) -> int:
        """Returns once this process is in charge; waits for the database, too.

        Args:
            address: Where it will be found.

        Returns:
            The term.
        """
        told = ""
        while True:
            began_seconds = self._clock()
            term = await self._tried(
                lambda connection: writes.take_lease(
                    connection, NAME, holder=self._holder, address=address, seconds=LEASE_SECONDS
                )
            )
            if term is not None:
                self._renewed_at_seconds = began_seconds
                self._lease = LeaseRecord(name=NAME, term=term, holder=self._holder, address=address)
                _log.info("in charge", term=term)
                return term
            leader = await self._tried(lambda connection: writes.get_lease(connection, NAME))
            if leader is not None and leader.holder != told:
                told = leader.holder
                _log.info("another scheduler is in charge: standing by", leader=leader.address, term=leader.term)
                self._on_leader(leader.address)
            await asyncio.sleep(TRY_SECONDS)

    async def keep(self) -> None:
        """Renews it until cancelled; waits for a database that is away.

        Raises:
            DeposedError: Somebody else is in charge.
        """
        lease = self._lease
        assert lease is not None, "acquire() comes first"
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            began_seconds = self._clock()
            await self._tried(lambda connection: writes.renew_lease(connection, lease, seconds=LEASE_SECONDS))
            self._renewed_at_seconds = began_seconds

    async def fence(self, connection: AsyncConnection) -> None:
        """Makes a transaction one of this term: it commits only if nobody has taken over by then.

        Raises:
            DeposedError: Somebody has.
        """
        await writes.hold_lease(connection, NAME, self.term)

    async def give_up(self) -> None:
        """At the end: the next one need not wait. A database that is away is left alone."""
        lease, self._lease, self._renewed_at_seconds = self._lease, None, float("-inf")
        if lease is not None:
            with contextlib.suppress(*DATABASE_AWAY):
                await self._ask(lambda connection: writes.give_up_lease(connection, lease))

    async def _tried(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await persist(lambda: self._ask(work), transient=DATABASE_AWAY, reachability=self._reachability)

    async def _ask(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with asyncio.timeout(_ASK_SECONDS), self._engine.begin() as connection:
            return await work(connection)
