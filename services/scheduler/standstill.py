"""Ranks that wait for a recovery though nobody is gone: a connection between two of them broke, and both live on.

Whoever loses a peer parks, and so does everybody who waits for those that park. Mostly the peer is dead, and its
verdict leads to a plan. Where all are alive nobody will be accused, and without a plan they would stand there for ever:
one is made, mostly for the layout that they have.
"""

import asyncio

import structlog

from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.job_actor import JobActor
from evenkeel.services.scheduler.processes import Spawn

PATIENCE_SECONDS = 3.0
"""A death that made them park is told within half of that, by the detector or by the eyewitness."""
_STATUS_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Standstill:
    """Looks after parked ranks of one job. Belongs to the event loop's thread."""

    def __init__(self, spawn: Spawn, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            spawn: Starts tasks that the service owns.
            patience_seconds: How long ranks may be parked before somebody looks at why.
        """
        self._spawn = spawn
        self._patience_seconds = patience_seconds
        self._looking: asyncio.Task[None] | None = None

    def attend(self, actor: JobActor, board: StateBoard) -> None:
        """Whose ranks these are, and where their states are posted; call it once, before the first state."""

        def posted(state: RankState) -> None:
            if state.phase is RankPhase.PARKED and (self._looking is None or self._looking.done()):
                self._looking = self._spawn(self._look(actor, board))

        board.listeners.append(posted)

    async def _look(self, actor: JobActor, board: StateBoard) -> None:
        while True:
            await asyncio.sleep(self._patience_seconds)
            job = actor.job
            if job.finished or not job.can_reshape:
                return
            parked = [rank for rank in job.layout.ranks if _is_parked(board.states.get(rank), job.epoch)]
            if not parked:
                return
            recovers = job.flight is not None and job.flight.mode is PlanMode.RECOVER
            if recovers or job.stuck or job.lost or not await _all_alive(actor):
                continue
            _log.warning("ranks are parked though nobody is gone: recovering", job_id=job.job_id, parked=parked)
            await actor.recover(job.epoch)


def _is_parked(state: RankState | None, epoch: int) -> bool:
    return state is not None and state.phase is RankPhase.PARKED and state.epoch == epoch


async def _all_alive(actor: JobActor) -> bool:
    """Whether every process of the layout in force answers, and none of them is done."""
    infos = [actor.job.ranks[rank] for rank in actor.job.layout.ranks]
    calls = actor.calls_to([(info.rank, info.incarnation) for info in infos])
    answers = await asyncio.gather(*(each.status(_STATUS_SECONDS) for each in calls.values()), return_exceptions=True)
    states = [each for each in answers if isinstance(each, RankState) and each.phase is not RankPhase.FINISHED]
    return len(states) == len(infos)
