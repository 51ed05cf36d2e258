"""Who is in charge, in memory: what the statements of :mod:`evenkeel.history.writes` do to the table of leases."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from evenkeel.history.errors import DeposedError
from evenkeel.history.stream_records import LeaseRecord

if TYPE_CHECKING:
    from tests.simulation.world import World


class Leases:
    """One lease; stands for the engine, its connections and the statements."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.newest: LeaseRecord | None = None
        self._expires_at = 0.0

    @property
    def term(self) -> int:
        return 0 if self.newest is None else self.newest.term

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[None]:
        await self._world.request(lambda: None)
        yield

    async def take_lease(self, _: Any, name: str, *, holder: str, address: str, seconds: float) -> int | None:
        if self._world.loop.now < self._expires_at:
            return None
        term = self.term + 1
        self.newest = LeaseRecord(name=name, term=term, holder=holder, address=address)
        self._expires_at = self._world.loop.now + seconds
        self._world.note(f"scheduler {holder} takes over in term {term}")
        return term

    async def get_lease(self, _: Any, name: str) -> LeaseRecord | None:
        return self.newest

    async def renew_lease(self, _: Any, lease: LeaseRecord, *, seconds: float) -> None:
        self.hold(lease.term)
        self._expires_at = self._world.loop.now + seconds

    def hold(self, term: int) -> None:
        if self.term != term:
            raise DeposedError("scheduler", term)
