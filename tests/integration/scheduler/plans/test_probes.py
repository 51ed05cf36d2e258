"""A suspicion leads to one probe on the suspect and one on its peer, through the real controllers."""

import time
from dataclasses import replace

import pytest

from evenkeel.contracts.suspicion import SuspectedLink, Suspicion
from tests.integration.scheduler.conftest import World

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


def suspicion(job_id: str, *, rank: int = 3, peer_rank: int = 1) -> Suspicion:
    return Suspicion(
        job_id=job_id,
        rank=rank,
        incarnation=0,
        peer_rank=peer_rank,
        peer_incarnation=0,
        iteration=7,
        at_unix_seconds=time.time(),
        matrix_size=64,
    )


async def test_suspect_and_peer_are_probed_at_an_iteration_border_and_nobody_else(world: World) -> None:
    world.toys.ranks[3].probe_seconds = 0.008
    asked = suspicion(world.toys.job_id)
    await world.coordinator.tell(world.toys.job_id, asked)
    await world.until(lambda: world.scheduler.probes, "a probe's outcome")
    assert world.scheduler.probes == [(asked, 0.008, 0.004)]
    await world.steps_are_gapless()


async def test_both_ends_of_a_suspected_link_and_of_a_healthy_one_are_asked(world: World) -> None:
    world.toys.link_seconds[frozenset((2, 6))] = 0.005
    link = SuspectedLink(
        partner_rank=6, partner_incarnation=0, peer_partner_rank=7, peer_partner_incarnation=0, num_bytes=1000
    )
    asked = replace(suspicion(world.toys.job_id, rank=2, peer_rank=3), matrix_size=0, link=link)
    await world.coordinator.tell(world.toys.job_id, asked)
    await world.until(lambda: world.scheduler.probes, "a probe's outcome")
    assert world.scheduler.probes == [(asked, 0.005, 0.001)]
    await world.steps_are_gapless()


async def test_a_suspicion_about_a_process_that_is_not_there_any_more_is_dropped(world: World) -> None:
    await world.coordinator.tell(world.toys.job_id, replace(suspicion(world.toys.job_id), incarnation=5))
    await world.coordinator.tell("another-job", suspicion("another-job"))
    await world.coordinator.tell(world.toys.job_id, suspicion(world.toys.job_id))
    await world.until(lambda: world.scheduler.probes, "a probe's outcome")
    assert [asked.incarnation for asked, _, _ in world.scheduler.probes] == [0]
