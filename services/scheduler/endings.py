"""When a job that nobody finished is over: its processes have ended, and the fleet API was not told.

Two things tell of it. Processes of a loop that cannot be reshaped say that they are done: no launcher of ours finishes
their job. And the detector has seen all processes of a job end, also while no scheduler ran that could have been told.
Either way the job is finished after a while, unless a rank is gone or a later process has come up: somebody may go on.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from evenkeel.layouts.rank_state import RankPhase
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError, RankCalls, RankRefusedError
from evenkeel.services.scheduler.job_actor import JobActor
from evenkeel.services.scheduler.parts import Parts

_STATUS_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class Endings:
    """Looks after the ends of one job's processes. Belongs to the event loop's thread."""

    def __init__(self, finish: Callable[[], Awaitable[None]], parts: Parts) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            finish: Finishes the job.
            parts: What all jobs share.
        """
        self._finish = finish
        self._parts = parts
        self._actor: JobActor | None = None
        self._seen_to_end = False

    def attend(self, actor: JobActor) -> None:
        """Whose processes these are; call it once, before the first of them can end."""
        self._actor = actor

    async def ended(self, rank: int, incarnation: int) -> None:
        """A process said that it was done."""
        assert self._actor is not None, "attend() comes first"
        await self._actor.take_end(rank, incarnation)
        if self._actor.job.all_ended:
            # A task of its own: finishing the job ends the watch that called us.
            self._parts.spawn(self._finish_if_nobody_comes(self._actor))

    def all_ended(self, seen: bool) -> None:
        """Whether the detector's newest word on the job is that all of its processes have ended."""
        assert self._actor is not None, "attend() comes first"
        if seen and not self._seen_to_end:
            self._parts.spawn(self._finish_if_nobody_comes(self._actor))
        self._seen_to_end = seen

    async def _finish_if_nobody_comes(self, actor: JobActor) -> None:
        await asyncio.sleep(self._parts.ended_seconds)
        if actor.job.finished:
            return
        seen = self._seen_to_end and not actor.job.lost
        if actor.job.all_ended or (seen and not await _anybody(actor)):
            _log.info("all processes of the job have ended: it is finished", job_id=actor.job.job_id)
            await self._finish()


async def _anybody(actor: JobActor) -> bool:
    """Whether some process of the job answers, and is not done."""
    return any(await asyncio.gather(*map(_is_there, actor.controllers())))


async def _is_there(calls: RankCalls) -> bool:
    try:
        return (await calls.status(_STATUS_SECONDS)).phase is not RankPhase.FINISHED
    except RankAwayError:
        return False
    except RankRefusedError:
        return True
