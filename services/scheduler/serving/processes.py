"""The processes of one job's ranks: a client and a Watch stream for each, and the eviction of those that hang."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from itertools import count
from typing import Any

import structlog

from evenkeel.layouts.rank_state import RankState
from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.adapters.ranks.client import RankClient
from evenkeel.services.scheduler.adapters.ranks.watch import StreamBroken, watch_rank
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError, RankRefusedError
from evenkeel.services.scheduler.domain.parts import RankInfo
from evenkeel.services.scheduler.jobs.events import Silence
from evenkeel.services.scheduler.jobs.job import Process

_log = structlog.get_logger(__name__)

_EVICTION_ATTEMPTS = 20
_CALL_SECONDS = 2.0

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[None]]
"""Starts a task that the service owns; nobody asks what it returns."""


class Processes:
    """Clients and streams of one job. Belongs to the event loop's thread.

    Attributes:
        board: What each rank said last of itself.
    """

    def __init__(self, connect: Callable[..., RankClient], broken: StreamBroken, spawn: Spawn) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            connect: Makes a client of a process, by its rank, incarnation and address.
            broken: Told of broken streams.
            spawn: Starts tasks.
        """
        self.board = StateBoard()
        self._connect, self._broken, self._spawn = connect, broken, spawn
        self._clients: dict[Process, RankClient] = {}
        self._watches: dict[Process, asyncio.Task[None]] = {}

    def follow(self, infos: Iterable[RankInfo]) -> None:
        """Have a client and a stream of each of these processes that has registered, and of no other."""
        wanted = {info.process: info for info in infos if info.address}
        for key, client in list(self._clients.items()):
            if key not in wanted or wanted[key].address != client.address:
                self._forget(key)
        for key, info in wanted.items():
            if key not in self._clients:
                client = self._clients[key] = self._client(info)
                self._watches[key] = self._spawn(watch_rank(client, self.board, self._broken))

    def calls(self, infos: Iterable[RankInfo]) -> Mapping[int, RankClient]:
        """Clients of those of the processes that are followed, by rank."""
        found = {info.rank: self._clients.get(info.process) for info in infos}
        return {rank: client for rank, client in sorted(found.items()) if client is not None}

    async def ask(
        self, seconds: float, processes: Collection[Process] | None = None
    ) -> Mapping[Process, RankState | Silence]:
        """What processes say of themselves when they are asked, or all that are followed; others are left out.

        Args:
            seconds: How long each may take.
            processes: Whom; None = all.
        """
        clients = {key: one for key, one in self._clients.items() if processes is None or key in processes}
        answers = await asyncio.gather(*(_state_of(client, seconds) for client in clients.values()))
        return dict(zip(clients, answers, strict=True))

    def evict(self, info: RankInfo, top_epoch: Callable[[], int], hangs: Callable[[], bool]) -> None:
        """Tell a process to leave, in the background: for a while, and as long as it hangs and holds its rank's place.

        Whoever goes on after minutes would else be a process that nobody follows and no other replaces.

        Args:
            info: The process.
            top_epoch: The newest of the job: one that goes on may have moved with the others before it is reached.
            hangs: Whether it still hangs, as far as is known.
        """
        if info.address:
            self._spawn(self._evict(info, top_epoch, hangs))

    def close(self) -> None:
        """Follow nobody any more."""
        self.follow(())

    def _client(self, info: RankInfo) -> RankClient:
        return self._connect(rank=info.rank, incarnation=info.incarnation, address=info.address)

    def _forget(self, key: Process) -> None:
        self._watches.pop(key).cancel()
        self._spawn(self._clients.pop(key).close())

    async def _evict(self, info: RankInfo, top_epoch: Callable[[], int], hangs: Callable[[], bool]) -> None:
        client, backoff = self._client(info), Backoff(longest_seconds=2.0)
        try:
            for attempt in count():
                if attempt >= _EVICTION_ATTEMPTS and not hangs():
                    return
                try:
                    await client.interrupt(top_epoch(), leave=True, timeout_seconds=_CALL_SECONDS)
                except RankAwayError:
                    await asyncio.sleep(backoff.next_seconds())
                except RankRefusedError as error:
                    _log.warning("rank does not leave", rank=info.rank, error=str(error))
                    return
                else:
                    _log.info("told rank to leave", rank=info.rank, incarnation=info.incarnation)
                    return
        finally:
            await client.close()


async def _state_of(client: RankClient, seconds: float) -> RankState | Silence:
    try:
        return await client.status(seconds)
    except RankAwayError:
        return Silence.AWAY
    except RankRefusedError:
        return Silence.REFUSED
