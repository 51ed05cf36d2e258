"""What becomes of suspicions: answers are reported, and each end is counted under its own name."""

import asyncio
from dataclasses import dataclass, replace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from evenkeel.contracts.suspicion import SuspectedLink, Suspicion
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.scheduler.dispatch.protocol import (
    Probe,
    RankAwayError,
    RankCalls,
    RankRefusedError,
    RankTimeoutError,
)
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.probing import Prober

pytestmark = pytest.mark.asyncio

DEVICE = Suspicion(
    job_id="job",
    rank=0,
    incarnation=0,
    peer_rank=1,
    peer_incarnation=0,
    iteration=7,
    at_unix_seconds=0.0,
    matrix_size=64,
)
LINK = replace(
    DEVICE,
    matrix_size=0,
    link=SuspectedLink(
        partner_rank=2, partner_incarnation=0, peer_partner_rank=3, peer_partner_incarnation=0, num_bytes=1000
    ),
)


@dataclass
class Rank:
    """Answers probes with ``seconds`` and more, or raises ``error``; waits for ``border`` first if it has one."""

    seconds: float = 0.004
    error: Exception | None = None
    border: asyncio.Event | None = None

    async def probe(self, probe: Probe, timeout_seconds: float) -> list[float]:
        if self.border is not None:
            await self.border.wait()
        if self.error is not None:
            raise self.error
        return [self.seconds * number for number in range(probe.repetitions, 0, -1)]


class Desk:
    """A prober, what it reports and what it counts."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[float, float] | None] = []
        self.registry: CollectorRegistry = create_registry()
        self._prober = Prober(SchedulerMetrics(self.registry))

    async def suspect(self, suspicion: Suspicion, **ranks: Rank) -> None:
        calls = {int(name.removeprefix("rank")): cast(RankCalls, rank) for name, rank in ranks.items()}
        self.outcomes.append(await self._prober.answer(suspicion, calls))

    def counted(self, what: str = "device") -> dict[str, float]:
        """Number of suspicions about ``what``, by outcome; none where there was none."""
        return {
            sample.labels["outcome"]: sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == "evenkeel_scheduler_probes_total" and sample.labels["what"] == what
        }

    def num_timed(self, what: str = "device") -> float | None:
        return self.registry.get_sample_value("evenkeel_scheduler_probe_seconds_count", {"what": what})


async def test_an_answer_is_reported_with_the_shortest_repetitions_counted_and_timed() -> None:
    desk = Desk()
    await desk.suspect(DEVICE, rank0=Rank(0.008), rank1=Rank())
    await desk.suspect(LINK, rank0=Rank(0.05), rank1=Rank(), rank2=Rank(0.02), rank3=Rank(0.003))
    assert desk.outcomes == [(0.008, 0.004), (0.02, 0.003)]
    assert (desk.counted(), desk.counted("link")) == ({"answered": 1.0}, {"answered": 1.0})
    assert (desk.num_timed(), desk.num_timed("link")) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (RankTimeoutError("no border in time"), "timed_out"),
        (RankAwayError("connection refused"), "away"),
        (RankRefusedError("no step vote"), "refused"),
    ],
)
async def test_whoever_does_not_answer_is_counted_by_how_and_not_timed(error: Exception, end: str) -> None:
    desk = Desk()
    await desk.suspect(DEVICE, rank0=Rank(error=error), rank1=Rank())
    assert (desk.outcomes, desk.counted(), desk.num_timed()) == ([None], {end: 1.0}, None)
    await desk.suspect(DEVICE, rank0=Rank(), rank1=Rank())
    assert desk.counted() == {end: 1.0, "answered": 1.0}


async def test_nobody_is_asked_beside_another_probe_or_for_a_process_that_is_gone() -> None:
    desk, border = Desk(), asyncio.Event()
    first = asyncio.create_task(desk.suspect(DEVICE, rank0=Rank(border=border), rank1=Rank()))
    await asyncio.sleep(0)
    await desk.suspect(LINK, rank0=Rank(), rank1=Rank(), rank2=Rank(), rank3=Rank())
    border.set()
    await first
    await desk.suspect(DEVICE, rank1=Rank())
    assert (desk.counted(), desk.counted("link")) == ({"answered": 1.0, "gone": 1.0}, {"busy": 1.0})
