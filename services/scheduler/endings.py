"""When a job that no launcher of ours started is over: its processes say that they are done, nobody says so of the job.

Once all processes of a loop that cannot be reshaped have said so, and none is gone, the job is finished, unless a later
process of some rank comes up soon. Any other job is finished by its launcher.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from services.scheduler.job_actor import JobActor
from services.scheduler.parts import Parts

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

    async def _finish_if_nobody_comes(self, actor: JobActor) -> None:
        await asyncio.sleep(self._parts.ended_seconds)
        if actor.job.all_ended and not actor.job.finished:
            _log.info("all processes of the job are done: it is finished", job_id=actor.job.job_id)
            await self._finish()
