"""The processes of one job's ranks: a client and a Watch stream for each, and the eviction of those that hang."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

import structlog

from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.adapters.rank_client import RankClient
from evenkeel.services.scheduler.adapters.rank_tls import RankTls
from evenkeel.services.scheduler.adapters.rank_watch import StreamBroken, watch_rank
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError, RankRefusedError
from evenkeel.services.scheduler.domain.job_state import RankInfo
from evenkeel.services.scheduler.leadership import Alone, Leadership

_log = structlog.get_logger(__name__)

_EVICTION_ATTEMPTS = 20
_CALL_SECONDS = 2.0

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task that the service owns."""

Ended = Callable[[int, int], Awaitable[None]]
"""Told (rank, incarnation) of a process that said that it was done."""


class Processes:
    """Clients and streams of one job. Belongs to the event loop's thread."""

    def __init__(
        self,
        job_id: str,
        job_token: str,
        broken: StreamBroken,
        spawn: Spawn,
        tls: RankTls | None = None,
        *,
        leadership: Leadership | None = None,
        ended: Ended | None = None,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            job_id: The job.
            job_token: Its token.
            broken: Told of broken streams.
            spawn: Starts tasks.
            tls: How ranks are talked to; None = plain.
            leadership: Of this scheduler; None = there is no other.
            ended: Told of processes that said that they were done.
        """
        self._leadership = leadership or Alone()
        self.board = StateBoard()
        self._job_id = job_id
        self._job_token = job_token
        self._broken = broken
        self._spawn = spawn
        self._tls = tls
        self._ended = ended
        self._clients: dict[tuple[int, int], RankClient] = {}
        self._watches: dict[tuple[int, int], asyncio.Task[None]] = {}

    @property
    def clients(self) -> tuple[RankClient, ...]:
        """Those of all processes that were not forgotten."""
        return tuple(self._clients.values())

    def add(self, info: RankInfo) -> None:
        """Make calls to a process possible and watch it; the same process again changes nothing."""
        key = info.rank, info.incarnation
        known = self._clients.get(key)
        if not info.address or (known is not None and known.address == info.address):
            return
        self.forget(key)
        client = self._clients[key] = self._client(info)
        self._watches[key] = self._spawn(self._watch(client))

    def _client(self, info: RankInfo) -> RankClient:
        return RankClient(
            job_id=self._job_id,
            job_token=self._job_token,
            rank=info.rank,
            incarnation=info.incarnation,
            address=info.address,
            leadership=self._leadership,
            tls=self._tls,
        )

    async def _watch(self, client: RankClient) -> None:
        await watch_rank(client, self.board, self._broken)
        if self._ended is not None:
            await self._ended(client.rank, client.incarnation)

    def forget(self, key: tuple[int, int]) -> None:
        """Stop watching a process (rank, incarnation) and close its connection; an unknown one is no error."""
        watch, client = self._watches.pop(key, None), self._clients.pop(key, None)
        if watch is not None:
            watch.cancel()
        if client is not None:
            self._spawn(client.close())

    def calls(self, infos: Iterable[RankInfo]) -> Mapping[int, RankClient]:
        """Clients of those of the processes that have registered, by rank."""
        found = {info.rank: self._clients.get((info.rank, info.incarnation)) for info in infos}
        return {rank: client for rank, client in sorted(found.items()) if client is not None}

    def drop(self, key: tuple[int, int], *, evict_in_epoch: int | None) -> None:
        """A verdict says that a process is gone.

        Args:
            key: (rank, incarnation).
            evict_in_epoch: For a process that hangs: tell it to leave, in the background; None for a dead one.
        """
        if evict_in_epoch is None:
            self.forget(key)
        else:
            self._spawn(self._evict(key, evict_in_epoch))

    def evict(self, info: RankInfo, epoch: int) -> None:
        """Tell a process that hangs, and that nobody watches any more, to leave, in the background."""
        self._clients[info.rank, info.incarnation] = self._client(info)
        self._spawn(self._evict((info.rank, info.incarnation), epoch))

    def close(self) -> None:
        """Forget all processes."""
        for key in list(self._clients):
            self.forget(key)

    async def _evict(self, key: tuple[int, int], epoch: int) -> None:
        client, backoff = self._clients.get(key), Backoff(longest_seconds=2.0)
        for _ in range(_EVICTION_ATTEMPTS if client is not None else 0):
            assert client is not None
            try:
                await client.interrupt(epoch, leave=True, timeout_seconds=_CALL_SECONDS)
                _log.info("told rank to leave", rank=key[0], incarnation=key[1])
                break
            except RankAwayError:
                await asyncio.sleep(backoff.next_seconds())
            except RankRefusedError as error:
                _log.warning("rank does not leave", rank=key[0], incarnation=key[1], error=str(error))
                break
        self.forget(key)
