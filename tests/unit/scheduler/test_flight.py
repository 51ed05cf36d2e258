"""One plan's way to the ranks: who is asked, who is waited for, and who is told when it comes to nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from benchmarks.planning.small_jobs import gpt
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import (
    Decision,
    LinkProbe,
    RankRefusedError,
    Reshape,
    StaleBallotError,
)
from evenkeel.services.scheduler.dispatch.two_phase import Flight

LAYOUT = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=1, num_micro_batches=2)
PLAN = Reshape(job_id="job", plan_id="plan", epoch=1, mode=PlanMode.BOUNDARY, to_layout=LAYOUT)


@dataclass
class Rank:
    """A rank that answers as it is told to, and remembers what it was asked."""

    rank: int
    phase: RankPhase = RankPhase.TRAINING
    refuses: RankRefusedError | None = None
    is_silent: bool = False
    asked: list[str] = field(default_factory=list)

    @property
    def state(self) -> RankState:
        epoch = 1 if "commit" in self.asked else 0
        return RankState(rank=self.rank, incarnation=0, phase=self.phase, epoch=epoch, steps_applied=5)

    async def _hear(self, what: str) -> RankState:
        self.asked.append(what)
        if self.is_silent:
            await asyncio.Event().wait()
        return self.state

    async def prepare(self, reshape: Reshape, timeout_seconds: float) -> RankState:
        state = await self._hear("prepare")
        if self.refuses is not None:
            raise self.refuses
        return state

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


def flight_of(ranks: list[Rank], others: list[Rank]) -> Flight:
    return Flight(
        reshape=PLAN,
        model=gpt(2),
        epoch=0,
        layout=LAYOUT,
        layouts={0: LAYOUT},
        calls={rank.rank: rank for rank in ranks},
        others={rank.rank: rank for rank in others},
        board=StateBoard(),
    )


async def nothing(decision: Decision) -> None:
    pass


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda rank: setattr(rank, "refuses", RankRefusedError("no")), RankRefusedError),
        (lambda rank: setattr(rank, "refuses", StaleBallotError(Ballot(0, 7), "no")), StaleBallotError),
        (lambda rank: setattr(rank, "phase", RankPhase.PARKED), NoAgreementError),
    ],
)
async def test_everybody_hears_that_a_plan_is_off(spoil: Callable[[Rank], None], error: type[Exception]) -> None:
    ranks, others = [Rank(0), Rank(1)], [Rank(5, RankPhase.JOINING)]
    spoil(ranks[1])
    with pytest.raises(error):
        await flight_of(ranks, others).run(nothing)
    assert all("abort" in rank.asked and "commit" not in rank.asked for rank in (*ranks, *others))


@pytest.mark.asyncio
async def test_whom_a_plan_does_not_concern_hears_of_it_and_is_not_waited_for() -> None:
    ranks, silent = [Rank(0), Rank(1)], Rank(5, RankPhase.JOINING, is_silent=True)
    other = Rank(6, RankPhase.JOINING)
    assert await asyncio.wait_for(flight_of(ranks, [silent, other]).run(nothing), 60.0) == 5
    assert other.asked == ["prepare", "commit"]
    assert silent.asked == ["prepare", "commit"]


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
