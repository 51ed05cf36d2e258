"""Probes on suspects: the same few matrix products on the suspect and on a healthy peer, both at an iteration border.

The two run at the same time, so a suspicion costs the job one probe, not two; one at a time per job. A probe decides
nothing: its report goes to the detector as evidence (design, "Detection", layer 5).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from services.scheduler.dispatch.protocol import RankAwayError, RankCalls, RankRefusedError
from services.scheduler.domain.suspicion import ProbeOutcome, Suspicion

REPETITIONS = 3
"""The shortest counts: a repetition is only ever disturbed upwards."""

DEADLINE_SECONDS = 60.0
"""A probe waits for an iteration border, and iterations may take most of a minute."""

_log = structlog.get_logger(__name__)


class Prober:
    """Answers the suspicions about one job. Belongs to the event loop's thread.

    Args:
        report: Told of each outcome.
    """

    def __init__(self, report: Callable[[ProbeOutcome], Awaitable[None]]) -> None:
        self._report = report
        self._busy = False

    async def answer(self, suspicion: Suspicion, calls: Mapping[int, RankCalls]) -> ProbeOutcome | None:
        """Probe and report; None when a probe is under way already, or one of the two did not answer.

        Args:
            suspicion: Whom.
            calls: Clients of suspect and peer, by rank.
        """
        suspect, peer = calls.get(suspicion.rank), calls.get(suspicion.peer_rank)
        if self._busy or suspect is None or peer is None:
            return None
        self._busy = True
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                seconds, peer_seconds = await asyncio.gather(
                    suspect.probe(suspicion.matrix_size, REPETITIONS, DEADLINE_SECONDS),
                    peer.probe(suspicion.matrix_size, REPETITIONS, DEADLINE_SECONDS),
                )
        except (RankAwayError, RankRefusedError, TimeoutError) as error:
            _log.info("probe without an answer", job_id=suspicion.job_id, rank=suspicion.rank, error=str(error))
            return None
        finally:
            self._busy = False
        outcome = ProbeOutcome(suspicion=suspicion, seconds=min(seconds), peer_seconds=min(peer_seconds))
        _log.info(
            "probed",
            job_id=suspicion.job_id,
            rank=suspicion.rank,
            peer_rank=suspicion.peer_rank,
            seconds=round(outcome.seconds, 6),
            peer_seconds=round(outcome.peer_seconds, 6),
        )
        await self._report(outcome)
        return outcome
