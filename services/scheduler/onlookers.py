"""Tells a job's watchers what its ranks do, also when nothing else of it has changed."""

import asyncio

from evenkeel.layouts.rank_state import RankState
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.domain.standing import Standing
from evenkeel.services.scheduler.job_actor import JobActor
from evenkeel.services.scheduler.processes import Spawn

PAUSE_SECONDS = 0.2
"""A job's ranks change together: what they say meanwhile is told as one."""


class Onlookers:
    """Those of one job. Belongs to the event loop's thread."""

    def __init__(self, spawn: Spawn, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            spawn: Starts tasks that the service owns.
            pause_seconds: From the first word of a rank until watchers are told.
        """
        self._spawn = spawn
        self._pause_seconds = pause_seconds
        self._telling: asyncio.Task[None] | None = None
        self._told: Standing | None = None

    def attend(self, actor: JobActor, board: StateBoard) -> None:
        """Whose ranks these are, and where their states are posted; call it once, before the first state."""

        def posted(_: RankState) -> None:
            if self._telling is None or self._telling.done():
                self._telling = self._spawn(self._tell(actor))

        board.listeners.append(posted)

    async def _tell(self, actor: JobActor) -> None:
        await asyncio.sleep(self._pause_seconds)
        standing = actor.view().standing
        if standing != self._told and not actor.job.finished:
            self._told = standing
            actor.publish()
