"""A Watch stream to one process of a rank: states go to the board, its break goes to telemetry as evidence.

A process that dies closes its sockets, so the stream breaks within milliseconds. Not every break is a death: the
controller is asked once more before anything is said. Nothing is marked here: the detector's verdict does that.
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

StreamBroken = Callable[[int, int, str], None]
"""Told (rank, incarnation, detail) when a stream broke and the controller does not answer any more; never waits."""


async def watch_rank(client: RankClient, board: StateBoard, broken: StreamBroken) -> None:
    """Watch a process until it says that it has finished or the caller cancels; reports each break of the stream once.

    Args:
        client: The process.
        board: Where states go.
        broken: Told when the process does not answer any more, and again only after it was heard in between.
    """
    backoff = Backoff(longest_seconds=2.0)
    connected = reported = False
    attempts = 0
    refusal = ""
    while True:
        attempts += 1
        detail = "the stream ended"
        try:
            async for state in client.watch():
                connected, reported, attempts = True, False, 0
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
            reported = False
        except RankRefusedError:
            pass
        except RankAwayError as error:
            if not reported and (connected or attempts >= _NEVER_CONNECTED_ATTEMPTS):
                reported = True
                _log.warning("stream to rank broke", rank=client.rank, incarnation=client.incarnation, error=detail)
                broken(client.rank, client.incarnation, f"{detail}; then {error}")
        await asyncio.sleep(backoff.next_seconds())
