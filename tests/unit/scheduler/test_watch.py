"""What is told of a process whose stream broke: silence once, and once more what its host says."""

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.adapters.ranks.client import RankClient
from evenkeel.services.scheduler.adapters.ranks.watch import watch_rank
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError
from evenkeel.services.scheduler.leadership import Alone

_STATE = RankState(rank=3, incarnation=1, phase=RankPhase.TRAINING, epoch=0)


class Client(RankClient):
    """A process that is away; its host says what the list says, one after another, then nothing more is asked."""

    def __init__(self, *refusals: bool) -> None:
        super().__init__(job_id="job", job_token="t", rank=3, incarnation=1, address="h:1", leadership=Alone())
        self._refusals = iter(refusals)
        self.is_over = asyncio.Event()

    async def watch(self) -> AsyncIterator[RankState]:
        yield _STATE
        raise RankAwayError("it broke")

    async def status(self, timeout_seconds: float) -> RankState:
        raise RankAwayError("away")

    async def is_refused(self, timeout_seconds: float) -> bool:
        for each in self._refusals:
            return each
        self.is_over.set()
        return await asyncio.Future()


class Gone(Client):
    async def watch(self) -> AsyncIterator[RankState]:
        for state in tuple[RankState, ...]():
            yield state
        raise RankAwayError("nobody")


async def told_of(client: Client) -> list[tuple[str, bool]]:
    told: list[tuple[str, bool]] = []
    watching = asyncio.create_task(
        watch_rank(client, StateBoard(), lambda *word: told.append(word[2:]), refused_seconds=0.0)
    )
    await client.is_over.wait()
    watching.cancel()
    await asyncio.wait([watching])
    await client.close()
    return told


@pytest.mark.asyncio
async def test_what_a_host_says_is_told_once() -> None:
    assert await told_of(Gone(True, True, True, True, True)) == [
        ("nobody; then away", False),
        ("its host says for 0 s that nothing listens at h:1", True),
    ]


@pytest.mark.asyncio
async def test_of_a_host_that_is_silent_too_nothing_more_is_told() -> None:
    assert await told_of(Gone(False, False, False, False)) == [("nobody; then away", False)]


@pytest.mark.asyncio
async def test_a_process_that_was_heard_in_between_is_told_of_anew() -> None:
    told = await told_of(Client(True, True))
    assert [is_refused for _, is_refused in told][:4] == [False, True] * 2


@pytest.mark.asyncio
async def test_a_closed_port_is_refused_and_an_open_or_unknown_address_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        client = RankClient(job_id="j", job_token="t", rank=0, incarnation=0, address=address, leadership=Alone())
        assert not await client.is_refused(10.0)
    assert await client.is_refused(10.0)
    client.address = "no address"
    assert not await client.is_refused(10.0)
    await client.close()


def test_a_process_is_silent_until_it_says_something_even_of_an_earlier_epoch() -> None:
    board, since = StateBoard(), datetime(2026, 1, 1, tzinfo=UTC)
    board.post(RankState(rank=3, incarnation=1, phase=RankPhase.TRAINING, epoch=2))
    board.silent[3, 1] = since
    board.post(RankState(rank=3, incarnation=0, phase=RankPhase.TRAINING, epoch=2))
    assert board.silent == {(3, 1): since}
    board.post(_STATE)
    assert (board.silent, board.states[3].epoch) == ({}, 2)
