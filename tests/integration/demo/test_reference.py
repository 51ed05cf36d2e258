"""The failure-free run in a process of its own: idle beside the job, at the usual priority once the job has ended."""

import asyncio
import os
import sys

import pytest

from evenkeel.demo.reference import Reference, _start, reference_run
from evenkeel.demo.script.job import main_job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio,
    pytest.mark.skipif(sys.platform != "linux", reason="priorities are set on Linux only"),
]

CONFIG = main_job("reference", 1).config


def policy_of(reference: Reference) -> int:
    return os.sched_getscheduler(reference._process.pid)


async def test_it_gives_way_until_it_is_hurried_and_its_losses_are_the_same() -> None:
    async with reference_run(CONFIG) as reference:
        async with asyncio.timeout(200):
            while policy_of(reference) != os.SCHED_IDLE:  # noqa: ASYNC110 - another process sets it
                await asyncio.sleep(0.01)
        await reference.hurry()
        losses = await reference.read_until(3)
        assert policy_of(reference) == os.SCHED_OTHER
    fresh = Reference(CONFIG, await _start(CONFIG, "--usual-priority"))
    try:
        assert await fresh.read_until(3) == losses
        assert policy_of(fresh) == os.SCHED_OTHER
    finally:
        await fresh.end()


async def test_a_run_that_ended_by_itself_is_told_when_it_is_read() -> None:
    async with reference_run(CONFIG) as reference:
        await reference.end()
        await reference.hurry()
        with pytest.raises(RuntimeError, match="ended after 0 of 1 iterations"):
            await asyncio.wait_for(reference.read_until(1), 100)


async def test_it_ends_although_more_was_written_than_anybody_has_read() -> None:
    talker = await asyncio.create_subprocess_exec("yes", stdout=asyncio.subprocess.PIPE)
    assert talker.stdout is not None
    while not talker.stdout._transport._paused:  # type: ignore[attr-defined] # noqa: ASYNC110 - the pipe fills up
        await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        await Reference(CONFIG, talker).end()
