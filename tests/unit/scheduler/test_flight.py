"""The driver of one plan's run: it does what the run asks for, and tells whoever is owed it that a plan is off."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import (
    Decision,
    LinkProbe,
    RankAwayError,
    RankGoneError,
    RankRefusedError,
    Reshape,
)
from evenkeel.services.scheduler.dispatch.question import Question
from evenkeel.services.scheduler.dispatch.two_phase import Flight, FlightTimes

LAYOUT = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=1, num_micro_batches=2)
PLAN = Reshape(job_id="job", plan_id="plan", epoch=1, mode=PlanMode.BOUNDARY, to_layout=LAYOUT)


@dataclass
class Rank:
    """A rank that answers as it is told to, and remembers what it was asked."""

    rank: int
    phase: RankPhase = RankPhase.TRAINING
    fails: dict[str, list[Exception]] = field(default_factory=dict)
    is_silent: bool = False
    asked: list[str] = field(default_factory=list)
    silence: asyncio.Event = field(default_factory=asyncio.Event)

    async def _hear(self, what: str) -> RankState:
        self.asked.append(what)
        if self.is_silent and what != "abort":
            self.silence.set()
            await asyncio.Event().wait()
        if self.fails.get(what):
            raise self.fails[what].pop(0)
        epoch = 1 if "commit" in self.asked else 0
        return RankState(rank=self.rank, incarnation=0, phase=self.phase, epoch=epoch, steps_applied=5)

    async def prepare(self, reshape: Reshape, timeout_seconds: float) -> RankState:
        return await self._hear("prepare")

    async def commit(self, reshape: Reshape, decision: Decision, timeout_seconds: float) -> RankState:
        return await self._hear("commit")

    async def abort(self, reshape: Reshape, timeout_seconds: float) -> RankState:
        return await self._hear("abort")

    async def interrupt(self, epoch: int, *, leave: bool, timeout_seconds: float) -> None:
        await self._hear("interrupt")

    async def probe(self, matrix_size: int, repetitions: int, timeout_seconds: float) -> list[float]:
        raise NotImplementedError

    async def probe_link(self, probe: LinkProbe, timeout_seconds: float) -> list[float]:
        raise NotImplementedError

    async def status(self, timeout_seconds: float) -> RankState:
        return await self._hear("status")


@dataclass
class Desk:
    """Makes flights, and waits for what they leave behind."""

    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    def flight(self, ranks: list[Rank], others: list[Rank], times: FlightTimes | None = None) -> Flight:
        return Flight(
            question=Question(
                reshape=PLAN,
                model=gpt(2),
                epoch=0,
                layout=LAYOUT,
                layouts={0: LAYOUT},
                concerned=frozenset(rank.rank for rank in ranks),
                others=frozenset(rank.rank for rank in others),
            ),
            calls={rank.rank: rank for rank in (*ranks, *others)},
            board=StateBoard(),
            spawn=self.spawn,
            times=times or FlightTimes(),
        )


async def nothing(decision: Decision) -> None:
    pass


@pytest.mark.asyncio
async def test_whom_a_plan_does_not_concern_hears_of_it_and_is_not_waited_for() -> None:
    desk, ranks, silent = Desk(), [Rank(0), Rank(1)], Rank(5, RankPhase.JOINING, is_silent=True)
    other = Rank(6, RankPhase.JOINING)
    assert await asyncio.wait_for(desk.flight(ranks, [silent, other]).run(nothing), 60.0) == 5
    assert other.asked == ["prepare", "commit"]
    assert silent.asked == ["prepare", "commit"]
    assert not desk.tasks


@pytest.mark.asyncio
async def test_that_a_plan_is_off_is_said_until_everybody_has_heard_it_or_is_gone() -> None:
    away = RankAwayError("away")
    ranks = [Rank(0, fails={"abort": [away, away]}), Rank(1, fails={"prepare": [RankRefusedError("no")]})]
    gone, desk = Rank(5, RankPhase.JOINING, fails={"abort": [away, RankGoneError("gone")]}), Desk()
    with pytest.raises(RankRefusedError):
        await desk.flight(ranks, [gone]).run(nothing)
    await asyncio.wait_for(asyncio.gather(*desk.tasks), 60.0)
    assert [each.asked.count("abort") for each in (*ranks, gone)] == [3, 1, 2]
    assert all("commit" not in each.asked for each in (*ranks, gone))


@pytest.mark.asyncio
async def test_a_plan_that_nobody_wants_any_more_is_off() -> None:
    ranks, desk = [Rank(0), Rank(1, is_silent=True)], Desk()
    task = asyncio.create_task(desk.flight(ranks, []).run(nothing))
    await asyncio.wait_for(ranks[1].silence.wait(), 60.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.wait_for(asyncio.gather(*desk.tasks), 60.0)
    assert all(rank.asked[-1] == "abort" for rank in ranks)


@pytest.mark.asyncio
async def test_a_rank_that_is_away_is_asked_again_and_ends_a_boundary_after_its_time() -> None:
    ranks, desk = [Rank(0), Rank(1, fails={"prepare": [RankAwayError("away")] * 2})], Desk()
    assert await asyncio.wait_for(desk.flight(ranks, []).run(nothing), 60.0) == 5
    silent = [Rank(0), Rank(1, is_silent=True)]
    with pytest.raises(RankAwayError):
        await desk.flight(silent, [], FlightTimes(boundary_prepare=0.01)).run(nothing)


@pytest.mark.asyncio
async def test_a_mistake_in_a_call_is_told_to_whoever_flies() -> None:
    with pytest.raises(ZeroDivisionError):
        await Desk().flight([Rank(0), Rank(1, fails={"prepare": [ZeroDivisionError()]})], []).run(nothing)


KNOWN = RankState(rank=1, incarnation=2, phase=RankPhase.TRAINING, epoch=3, steps_applied=5)


@pytest.mark.parametrize(
    ("later", "is_taken"),
    [
        (replace(KNOWN, steps_applied=6), True),
        (replace(KNOWN, epoch=4), True),
        (replace(KNOWN, incarnation=3, epoch=-1), True),
        (replace(KNOWN, epoch=2), False),
        (replace(KNOWN, incarnation=1, epoch=9), False),
        (replace(KNOWN, incarnation=1), False),
    ],
)
def test_the_board_keeps_the_newest_of_the_newest_process(later: RankState, is_taken: bool) -> None:
    board = StateBoard()
    board.post(KNOWN)
    board.post(later)
    assert board.states[1] == (later if is_taken else KNOWN)
