"""A Watch stream to one process of a rank: states go to the board, its break goes to telemetry as evidence.

A process that dies closes its sockets, so the stream breaks within milliseconds. Not every break is a death: the
controller is asked once more before anything is said. A host that says for long that nothing listens there is another
matter: no cut of the network and no absence of ours makes it say so. Nothing is marked here.
"""

import asyncio
from collections.abc import Callable

import structlog

from evenkeel.layouts.rank_state import RankPhase
from evenkeel.services.common.backoff import Backoff
from evenkeel.services.scheduler.adapters.ranks.client import RankClient
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError, RankRefusedError

_log = structlog.get_logger(__name__)

_SECOND_LOOK_SECONDS = 0.5
_NEVER_CONNECTED_ATTEMPTS = 3

# Whoever ended as planned has said so in another way by then.
REFUSED_SECONDS = 60.0

StreamBroken = Callable[[int, int, str, bool], None]
"""Told (rank, incarnation, detail, whether it is refused) when a controller does not answer any more; never waits."""


async def watch_rank(
    client: RankClient, board: StateBoard, broken: StreamBroken, *, refused_seconds: float = REFUSED_SECONDS
) -> None:
    """Watch a process until it says that it has finished or the caller cancels.

    Args:
        client: The process.
        board: Where states go.
        broken: Told when the process does not answer any more, and once more when it is refused; then again only after
            it was heard in between.
        refused_seconds: For how long its host must say that nothing listens at its address, whenever it is asked.
    """
    backoff, now = Backoff(longest_seconds=2.0), asyncio.get_running_loop().time
    connected = reported = is_refused = False
    refused_since: float | None = None
    attempts = 0
    refusal = ""
    while True:
        attempts += 1
        detail = "the stream ended"
        try:
            async for state in client.watch():
                connected, reported, is_refused, attempts = True, False, False, 0
                backoff.reset()
                board.post(state)
                if state.phase is RankPhase.FINISHED:
                    return
        except RankAwayError as error:
            detail = str(error)
        except RankRefusedError as error:
            detail = str(error)
            if detail != refusal:
                refusal = detail
                _log.warning("no stream to rank", rank=client.rank, incarnation=client.incarnation, error=detail)
        try:
            board.post(await client.status(_SECOND_LOOK_SECONDS))
        except RankRefusedError:
            pass
        except RankAwayError as error:
            if not reported and (connected or attempts >= _NEVER_CONNECTED_ATTEMPTS):
                reported = True
                _log.warning("stream to rank broke", rank=client.rank, incarnation=client.incarnation, error=detail)
                broken(client.rank, client.incarnation, f"{detail}; then {error}", False)
            refused_since = (refused_since or now()) if await client.is_refused(_SECOND_LOOK_SECONDS) else None
            if reported and not is_refused and refused_since is not None and now() - refused_since >= refused_seconds:
                is_refused = True
                detail = f"its host says for {refused_seconds:g} s that nothing listens at {client.address}"
                broken(client.rank, client.incarnation, detail, True)
        await asyncio.sleep(backoff.next_seconds())
