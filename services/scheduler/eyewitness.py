"""A death that the scheduler sees itself, for when nobody else can tell it: Kafka, telemetry or the detector is away.

Who is ill is the detector's to say, and it says so of a dead process within a tenth of a second. But the survivors of a
death stand still until there is a plan. So when a process's stream broke, its controller does not answer, others of its
epoch have parked, and no verdict has come for a while, the scheduler takes that for the verdict. It has the detector's
id: when the detector is heard again and says the same, nothing is counted twice.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import structlog

from evenkeel.contracts.verdict_ids import verdict_id
from evenkeel.history.records import CulpritRecord, EvidenceRecord, VerdictRecord
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError, RankRefusedError
from evenkeel.services.scheduler.job_actor import JobActor
from evenkeel.services.scheduler.processes import Spawn

PATIENCE_SECONDS = 1.5
"""How long a verdict may take; an idle machine needs a tenth of that, a busy one sometimes half of it."""
_AGAIN_SECONDS = 0.5
_STATUS_SECONDS = 0.5
_CONFIDENCE = 0.97

_log = structlog.get_logger(__name__)

Report = Callable[[int, int, str], Coroutine[Any, Any, None]]
"""Tells (rank, incarnation, detail) of a broken stream to whoever decides; waits for as long as Kafka is away."""


class Eyewitness:
    """Looks after broken streams of one job. Belongs to the event loop's thread."""

    def __init__(
        self,
        report: Report,
        spawn: Spawn,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            report: The usual way.
            spawn: Starts tasks that the service owns.
            patience_seconds: How long the usual way may take.
            clock: Unix seconds.
        """
        self._report = report
        self._spawn = spawn
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._actor: JobActor | None = None
        self._board: StateBoard | None = None
        self._under_way: dict[tuple[str, int, int], asyncio.Task[None]] = {}

    def attend(self, actor: JobActor, board: StateBoard) -> None:
        """Whose streams these are, and the newest states of its ranks; call it once, before the first stream."""
        self._actor, self._board = actor, board

    def stream_broken(self, rank: int, incarnation: int, detail: str) -> None:
        """A process's stream broke and its controller does not answer: report it, and see what becomes of it."""
        # Tasks of their own: a verdict ends the watch that called us, and a report may wait long for Kafka.
        for name, work in (("look", self._look), ("report", self._report)):
            earlier = self._under_way.get((name, rank, incarnation))
            if earlier is None or earlier.done():
                self._under_way[name, rank, incarnation] = self._spawn(work(rank, incarnation, detail))

    async def _look(self, rank: int, incarnation: int, detail: str) -> None:
        assert self._actor is not None, "attend() comes first"
        actor, key = self._actor, (rank, incarnation)
        await asyncio.sleep(self._patience_seconds)
        while calls := actor.calls_to({key}):
            parked = self._parked_beside(rank)
            if parked:
                try:
                    await calls[rank].status(_STATUS_SECONDS)
                    return
                except RankRefusedError:
                    return
                except RankAwayError as error:
                    if actor.calls_to({key}):
                        await self._decide(rank, incarnation, f"{detail}; then {error}", parked)
                    return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _decide(self, rank: int, incarnation: int, detail: str, parked: list[RankState]) -> None:
        assert self._actor is not None
        job = self._actor.job
        info = job.ranks[rank]
        witnesses = sorted(state.rank for state in parked)
        iteration = max(state.iteration for state in parked)
        text = (
            f"the scheduler saw it itself: the stream broke ({detail}), the controller does not answer, "
            f"ranks {witnesses} are parked, and no verdict came in {self._patience_seconds:g} s"
        )
        _log.warning("no verdict on a process that is gone: deciding without", rank=rank, incarnation=incarnation)
        verdict = VerdictRecord(
            verdict_id=verdict_id(job.job_id, VerdictKind.FAIL_STOP, rank, incarnation),
            job_id=job.job_id,
            kind=VerdictKind.FAIL_STOP,
            culprits=(CulpritRecord(rank=rank, incarnation=incarnation, node=info.node, device=info.device),),
            throughput=0.0,
            throughput_margin=0.0,
            confidence=_CONFIDENCE,
            first_iteration=iteration,
            decided_iteration=iteration,
            decided_at=datetime.fromtimestamp(self._clock(), UTC),
            evidence=(EvidenceRecord(name="process", value=1.0, unit="", text=text),),
        )
        await self._actor.take_verdicts([verdict])

    def _parked_beside(self, rank: int) -> list[RankState]:
        """Newest states of the others of the layout in force that wait for a recovery."""
        assert self._actor is not None
        assert self._board is not None
        job = self._actor.job
        found = []
        for other in job.layout.ranks:
            state = self._board.states.get(other)
            if other == rank or state is None or state.incarnation != job.ranks[other].incarnation:
                continue
            if state.phase is RankPhase.PARKED and state.epoch == job.epoch:
                found.append(state)
        return found
