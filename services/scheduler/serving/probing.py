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

import structlog

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.layouts.rank_state import LinkProbe
from evenkeel.services.scheduler.dispatch.protocol import (
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
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                ask = _time_devices if suspicion.link is None else _time_links
                seconds, peer_seconds = await ask(suspicion, calls)
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


async def _time_devices(suspicion: Suspicion, calls: Mapping[int, RankCalls]) -> tuple[float, float]:
    """Seconds of the shortest product on the suspect and on its peer."""
    seconds, peer_seconds = await asyncio.gather(
        *(
            calls[rank].probe(suspicion.matrix_size, REPETITIONS, DEADLINE_SECONDS)
            for rank in (suspicion.rank, suspicion.peer_rank)
        )
    )
    return min(seconds), min(peer_seconds)


async def _time_links(suspicion: Suspicion, calls: Mapping[int, RankCalls]) -> tuple[float, float]:
    """Seconds of the shortest way there and back over the suspected link and over the healthy one."""
    link = suspicion.link
    assert link is not None, "a suspicion about devices has no links to time"
    ends = (suspicion.rank, link.partner_rank), (suspicion.peer_rank, link.peer_partner_rank)
    # Another id for each probe: nobody may take an end that is still armed for an earlier one for ready.
    probe_id = 1 + secrets.randbelow(_NUM_PROBE_IDS)
    taken = await asyncio.gather(
        *(
            calls[rank].probe_link(
                LinkProbe(
                    probe_id=probe_id,
                    partner_rank=partner,
                    num_bytes=link.num_bytes,
                    num_ranks=2 * len(ends),
                    repetitions=REPETITIONS,
                ),
                DEADLINE_SECONDS,
            )
            for pair in ends
            for rank, partner in (pair, pair[::-1])
        )
    )
    return min(taken[0] + taken[1]), min(taken[2] + taken[3])
