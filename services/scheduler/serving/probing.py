"""Probes on suspects: the same few matrix products on a suspect and on a healthy peer, both at an iteration border.

Of a suspected link, the same few transfers over it and over a healthy link of its kind, at a border that all four ranks
agree on. Both run at the same time, so a suspicion costs the job one probe, not two; one at a time per job. A probe
decides nothing: what it took goes to the detector as evidence (design, "Detection", layer 5).
"""

import asyncio
import secrets
import time
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from itertools import chain

import structlog

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.layouts.rank_state import LinkProbe
from evenkeel.services.scheduler.dispatch.protocol import (
    Probe,
    RankAwayError,
    RankCalls,
    RankRefusedError,
    RankTimeoutError,
)
from evenkeel.services.scheduler.metrics import SchedulerMetrics

REPETITIONS = 3
"""The shortest counts: a repetition is only ever disturbed upwards."""

DEADLINE_SECONDS = 60.0
"""A probe waits for an iteration border, and iterations may take most of a minute."""

_NUM_PROBE_IDS = 1 << 40

_log = structlog.get_logger(__name__)


class ProbeEnd(StrEnum):
    """What became of a suspicion, in the metrics."""

    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    AWAY = "away"
    REFUSED = "refused"
    GONE = "gone"
    """Somebody to ask is dead or has not registered; or left while it was asked."""

    BUSY = "busy"
    """Another probe of the job was under way."""


class Prober:
    """Answers the suspicions about one job. Belongs to the event loop's thread.

    Args:
        metrics: Counts.
    """

    def __init__(self, metrics: SchedulerMetrics) -> None:
        self._metrics = metrics
        self._busy = False

    async def answer(self, suspicion: Suspicion, calls: Mapping[int, RankCalls]) -> tuple[float, float] | None:
        """Seconds of the shortest repetition on the suspect and on its peer.

        Args:
            suspicion: Whom.
            calls: Clients of everybody to ask, by rank.

        Returns:
            None when a probe is under way already, or somebody who was asked did not answer.
        """
        what = "device" if suspicion.link is None else "link"
        if self._busy or any(rank not in calls for rank, _ in suspicion.processes):
            self._metrics.probes.labels(what, ProbeEnd.BUSY if self._busy else ProbeEnd.GONE).inc()
            return None
        self._busy, end, started = True, ProbeEnd.GONE, time.perf_counter()
        sides = _probes(suspicion)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                asked = [calls[rank].probe(probe, DEADLINE_SECONDS) for side in sides for rank, probe in side.items()]
                taken, half = await asyncio.gather(*asked), len(asked) // 2
            seconds, peer_seconds = (min(chain.from_iterable(one)) for one in (taken[:half], taken[half:]))
            end = ProbeEnd.ANSWERED
        except (RankAwayError, RankRefusedError, TimeoutError) as error:
            end = _end_of(error)
            _log.info("probe without an answer", job_id=suspicion.job_id, rank=suspicion.rank, error=str(error))
            return None
        finally:
            self._busy = False
            self._metrics.probes.labels(what, end).inc()
        self._metrics.probe_seconds.labels(what).observe(time.perf_counter() - started)
        _log.info(
            "probed",
            job_id=suspicion.job_id,
            rank=suspicion.rank,
            partner_rank=None if suspicion.link is None else suspicion.link.partner_rank,
            peer_rank=suspicion.peer_rank,
            seconds=round(seconds, 6),
            peer_seconds=round(peer_seconds, 6),
        )
        return seconds, peer_seconds


def _end_of(error: Exception) -> ProbeEnd:
    if isinstance(error, TimeoutError | RankTimeoutError):
        return ProbeEnd.TIMED_OUT
    return ProbeEnd.AWAY if isinstance(error, RankAwayError) else ProbeEnd.REFUSED


def _probes(suspicion: Suspicion) -> list[dict[int, Probe]]:
    """What is asked on the side of the suspect and on that of its peer, by rank."""
    link, ranks = suspicion.link, (suspicion.rank, suspicion.peer_rank)
    if link is None:
        return [{rank: Probe(repetitions=REPETITIONS, matrix_size=suspicion.matrix_size)} for rank in ranks]
    # Another id for each probe: nobody may take an end that is still armed for an earlier one for ready.
    to = partial(
        LinkProbe,
        probe_id=1 + secrets.randbelow(_NUM_PROBE_IDS),
        num_bytes=link.num_bytes,
        num_ranks=4,
        repetitions=REPETITIONS,
    )
    return [
        {rank: Probe(repetitions=REPETITIONS, link=to(partner_rank=partner)) for rank, partner in (ends, ends[::-1])}
        for ends in zip(ranks, (link.partner_rank, link.peer_partner_rank), strict=True)
    ]
