"""One plan's flight: what it does about each answer, and that no order of answers leaves anybody behind."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.history.records import JobRecord, PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError, NothingLeftError
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.flight import Flight, FlightTimes
from evenkeel.services.scheduler.dispatch.protocol import (
    Decision,
    Probe,
    RankAwayError,
    RankGoneError,
    RankRefusedError,
    RankTimeoutError,
    StaleBallotError,
)
from evenkeel.services.scheduler.domain.job_state import new_job
from tests.simulation.virtual_loop import VirtualLoop

LAYOUT = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=1, num_micro_batches=2)
AT = datetime(2026, 1, 1, tzinfo=UTC)
JOB = new_job(JobRecord(job_id="job", name="", model=gpt(2), layout=LAYOUT, registered_at=AT, job_token="t" * 16))
PLAN = PlanRecord(plan_id="plan", job_id="job", mode=PlanMode.BOUNDARY, epoch=1, layout=LAYOUT, proposed_at=AT)
AWAY, LATE = RankAwayError("away"), RankTimeoutError("late")
GONE, NO = RankGoneError("gone"), RankRefusedError("no")


@dataclass
class Rank:
    """A rank that answers as it is told to, and remembers what it was asked."""

    rank: int
    phase: RankPhase = RankPhase.TRAINING
    fails: dict[str, list[Exception]] = field(default_factory=dict)
    silent_at: tuple[str, ...] = ()
    loses: list[str] = field(default_factory=list)
    enters_at: str = "commit"
    asked: list[str] = field(default_factory=list)
    seconds: list[object] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    epoch: int = 0

    @property
    def state(self) -> RankState:
        held = () if self.phase is RankPhase.JOINING else (0,)
        return RankState(
            rank=self.rank, incarnation=0, phase=self.phase, epoch=self.epoch, steps_applied=5, held_epochs=held
        )

    async def hear(self, what: str, *given: object) -> RankState:
        assert None not in given
        self.asked.append(what)
        self.seconds.append(given[-1])
        if what in (*self.silent_at, "commit"):
            self.reached.set()
        if what in self.silent_at:
            await asyncio.Event().wait()
        if what in self.loses:
            self.loses.remove(what)
            await asyncio.sleep(float(given[-1]))  # type: ignore[arg-type]
            raise LATE
        if self.fails.get(what):
            raise self.fails[what].pop(0)
        if what == self.enters_at:
            self.epoch = 1
        return self.state

    async def prepare(self, plan: PlanRecord, timeout_seconds: float) -> RankState:
        return await self.hear("prepare", plan, timeout_seconds)

    async def commit(self, plan: PlanRecord, decision: Decision, timeout_seconds: float) -> RankState:
        return await self.hear("commit", plan, decision, timeout_seconds)

    async def abort(self, plan: PlanRecord, timeout_seconds: float) -> RankState:
        return await self.hear("abort", plan, timeout_seconds)

    async def interrupt(self, epoch: int, *, leave: bool, timeout_seconds: float) -> None:
        raise NotImplementedError

    async def probe(self, probe: Probe, timeout_seconds: float) -> list[float]:
        raise NotImplementedError

    async def status(self, timeout_seconds: float) -> RankState:
        return await self.hear("status", timeout_seconds)


@dataclass
class Desk:
    """Makes flights, and waits for what they leave behind."""

    board: StateBoard = field(default_factory=StateBoard)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    def flight(self, *ranks: Rank, mode: PlanMode = PlanMode.BOUNDARY, **times: float) -> Flight:
        return Flight(
            known=JOB,
            plan=replace(PLAN, mode=mode),
            calls={rank.rank: rank for rank in ranks},
            board=self.board,
            spawn=self.spawn,
            times=FlightTimes(**times),
        )

    async def is_told_off(self, *ranks: Rank) -> bool:
        """Whether exactly these are told that the plan is off; waits until they have been."""
        await asyncio.wait_for(asyncio.gather(*self.tasks), 60.0)
        return bool(self.tasks) and all("abort" in rank.asked and "commit" not in rank.asked for rank in ranks)


async def nothing(decision: Decision) -> None:
    pass


async def landed(flight: Flight) -> int:
    return await asyncio.wait_for(flight.run(nothing), 60.0)


@pytest.mark.asyncio
async def test_whom_a_plan_does_not_concern_hears_what_is_decided_and_is_not_waited_for() -> None:
    desk, silent = Desk(), Rank(5, RankPhase.JOINING, silent_at=("commit",))
    refuses, gone = (Rank(6 + i, RankPhase.JOINING, fails={"commit": [why]}) for i, why in enumerate((NO, GONE)))
    late = Rank(1, enters_at="status")
    assert await landed(desk.flight(Rank(0), late, silent, refuses, gone, poll=0.01)) == 5
    assert silent.asked == refuses.asked == gone.asked == ["commit"]
    assert not desk.tasks
    assert not desk.board.listeners


@pytest.mark.asyncio
async def test_who_may_have_moved_by_a_plan_that_was_decided_and_not_applied_is_asked_what_it_holds() -> None:
    wider = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=3, num_micro_batches=2)
    ranks = [Rank(rank, RankPhase.PARKED) for rank in (0, 1, 5, 6)]
    known = replace(JOB, layouts={**JOB.layouts, 1: wider})
    await landed(replace(Desk().flight(*ranks, mode=PlanMode.RECOVER), known=known))
    assert [rank.asked[0] for rank in ranks] == ["prepare", "prepare", "prepare", "commit"]


@pytest.mark.asyncio
async def test_that_a_plan_is_off_is_said_until_everybody_has_heard_it_or_is_gone() -> None:
    slow, refuses = Rank(0, fails={"abort": [AWAY, AWAY]}), Rank(1, fails={"prepare": [NO], "abort": [NO]})
    other, desk = Rank(5, RankPhase.JOINING), Desk()
    with pytest.raises(RankRefusedError):
        await landed(desk.flight(slow, refuses, other))
    assert await desk.is_told_off(slow, refuses)
    assert (slow.asked.count("abort"), refuses.asked.count("abort"), other.asked) == (3, 1, [])
    gone = Rank(1, fails={"prepare": [NO], "abort": [AWAY, RankGoneError("gone")]})
    with pytest.raises(RankRefusedError):
        await landed(desk.flight(Rank(0), gone))
    assert await desk.is_told_off(gone)
    assert gone.asked.count("abort") == 2


@pytest.mark.asyncio
async def test_a_plan_that_nobody_wants_any_more_is_off_unless_it_is_being_decided() -> None:
    ranks, desk = [Rank(0), Rank(1, silent_at=("prepare",))], Desk()
    task = asyncio.create_task(desk.flight(*ranks).run(nothing))
    await asyncio.wait_for(ranks[1].reached.wait(), 60.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await desk.is_told_off(*ranks)

    deciding, desk, ranks = asyncio.Event(), Desk(), [Rank(0), Rank(1)]

    async def decided(decision: Decision) -> None:
        deciding.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(desk.flight(*ranks).run(decided))
    await asyncio.wait_for(deciding.wait(), 60.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not desk.tasks
    assert all(rank.asked == ["prepare"] for rank in ranks)


@pytest.mark.asyncio
async def test_a_rank_that_is_away_is_asked_again_and_ends_a_boundary_after_its_time() -> None:
    assert await landed(Desk().flight(Rank(0), Rank(1, fails={"prepare": [AWAY] * 2, "commit": [AWAY] * 2}))) == 5
    one_answer_is_lost = Rank(1, loses=["prepare", "commit"])
    assert await landed(Desk().flight(Rank(0), one_answer_is_lost, attempt=0.01)) == 5
    with pytest.raises(RankAwayError, match="rank 1 did not answer in time"):
        await landed(Desk().flight(Rank(0), Rank(1, silent_at=("prepare",)), boundary_prepare=0.01))
    with pytest.raises(RankAwayError, match="away"):
        await landed(Desk().flight(Rank(0), Rank(1, fails={"prepare": [AWAY] * 9}), boundary_prepare=0.01))


@pytest.mark.asyncio
async def test_a_recovery_waits_for_as_long_as_it_takes() -> None:
    ranks = [Rank(0, RankPhase.PARKED), Rank(1, RankPhase.PARKED, fails={"prepare": [AWAY] * 3})]
    assert await landed(Desk().flight(*ranks, mode=PlanMode.RECOVER, boundary_prepare=0.01)) == 5


@pytest.mark.asyncio
async def test_each_attempt_at_one_that_does_not_answer_in_time_has_twice_as_long() -> None:
    late = Rank(1, RankPhase.PARKED, loses=["prepare"] * 4)
    flight = Desk().flight(Rank(0, RankPhase.PARKED), late, mode=PlanMode.RECOVER, attempt=0.01, longest_attempt=0.05)
    assert await landed(flight) == 5
    assert late.seconds[:5] == [0.01, 0.02, 0.04, 0.05, 0.05]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("mode", "phases", "expected"),
    [
        (PlanMode.BOUNDARY, (RankPhase.TRAINING, RankPhase.PARKED), NoAgreementError),
        (PlanMode.RECOVER, (RankPhase.JOINING, RankPhase.JOINING), NothingLeftError),
    ],
)
async def test_what_the_answers_do_not_allow_is_off(
    mode: PlanMode, phases: tuple[RankPhase, RankPhase], expected: type[Exception]
) -> None:
    desk, ranks = Desk(), [Rank(0, phases[0]), Rank(1, phases[1])]
    with pytest.raises(expected):
        await landed(desk.flight(*ranks, mode=mode))
    assert await desk.is_told_off(*ranks)


@pytest.mark.asyncio
@pytest.mark.parametrize("at", ["prepare", "commit"])
@pytest.mark.parametrize("error", [StaleBallotError(Ballot(3, 7), "no"), ZeroDivisionError(), RankGoneError("gone")])
async def test_a_refusal_and_a_mistake_are_told_as_they_are(at: str, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await landed(Desk().flight(Rank(0), Rank(1, fails={at: [error]})))
    assert raised.value is error


@pytest.mark.asyncio
async def test_ranks_that_say_why_they_cannot_go_over_end_a_decided_plan() -> None:
    desk, stays = Desk(), Rank(1, enters_at="")
    task = asyncio.create_task(desk.flight(Rank(0), stays).run(nothing))
    await asyncio.wait_for(stays.reached.wait(), 60.0)
    desk.board.post(replace(stays.state, rank=5, failed_epoch=1, failed_reason="no matter"))
    desk.board.post(replace(stays.state, failed_epoch=1, failed_reason="PeerLost"))
    with pytest.raises(RankRefusedError, match="rank 1: PeerLost"):
        await asyncio.wait_for(task, 60.0)
    assert not desk.tasks


@pytest.mark.asyncio
@pytest.mark.parametrize("phase", [RankPhase.TRAINING, RankPhase.PARKED])
async def test_who_has_been_there_has_heard_of_it_though_its_answer_was_lost_or_it_has_parked_again(
    phase: RankPhase,
) -> None:
    desk, ranks = Desk(), [Rank(0), Rank(1, silent_at=("commit",))]
    task = asyncio.create_task(desk.flight(*ranks).run(nothing))
    await asyncio.wait_for(ranks[1].reached.wait(), 60.0)
    desk.board.post(replace(ranks[1].state, phase=phase, epoch=1))
    assert await asyncio.wait_for(task, 60.0) == 5


@pytest.mark.asyncio
async def test_whoever_is_not_heard_of_for_a_while_is_asked() -> None:
    quiet = Rank(1, enters_at="status", fails={"status": [NO, AWAY]})
    there = Rank(0)
    assert await landed(Desk().flight(there, quiet, poll=0.01)) == 5
    assert (quiet.asked.count("status"), there.asked.count("status")) == (3, 0)


@pytest.mark.asyncio
async def test_a_rank_that_a_plan_does_without_has_only_to_hear_of_it() -> None:
    without = uniform_layout(num_blocks=4, tensor=1, pipeline=1, data=1, num_micro_batches=2)
    flight = Desk().flight(Rank(0), Rank(1, enters_at=""))
    assert await landed(replace(flight, plan=replace(PLAN, layout=without))) == 5


@pytest.mark.asyncio
async def test_a_rank_that_comes_back_without_the_plan_is_waited_for_again() -> None:
    desk, last = Desk(), Rank(1, enters_at="")
    task = asyncio.create_task(desk.flight(Rank(0), last, poll=60.0).run(nothing))
    await asyncio.wait_for(last.reached.wait(), 60.0)
    desk.board.post(replace(Rank(0).state, incarnation=1, epoch=-1))
    desk.board.post(replace(last.state, epoch=1))
    await asyncio.sleep(0.0)
    assert not task.done()
    desk.board.post(replace(Rank(0).state, incarnation=1, epoch=1))
    assert await asyncio.wait_for(task, 60.0) == 5


@pytest.mark.asyncio
@pytest.mark.parametrize("steps_applied", [9, 0])
async def test_a_decided_plan_goes_on_after_a_restart_with_its_commits(steps_applied: int) -> None:
    decision = Decision(from_epoch=0, from_layout=LAYOUT, sources=(0, 1), steps_applied=steps_applied)
    ranks = [Rank(0), Rank(1), Rank(5, RankPhase.JOINING)]
    flight = Desk().flight(*ranks, mode=PlanMode.RECOVER)
    assert await asyncio.wait_for(flight.finish(decision), 60.0) == steps_applied
    assert all(rank.asked == ["commit"] for rank in ranks)


@given(st.data())
def test_no_order_of_answers_leaves_anybody_behind(data: st.DataObject) -> None:
    """Whatever comes, and in whichever order: it ends after everybody has taken the plan, or is told that it is off;
    and no commit leaves before the decision is durable."""
    is_durable, desk, loop = False, Desk(), VirtualLoop()

    class Unsteady(Rank):
        async def hear(self, what: str, *given: object) -> RankState:
            assert is_durable or what != "commit"
            await asyncio.sleep(data.draw(st.sampled_from([0.0, 0.1, 0.3])))
            problems = [AWAY, NO] if what == "prepare" else [AWAY]
            problem = data.draw(st.sampled_from([None, None, None, *problems])) if len(self.asked) < 5 else None
            self.fails, self.enters_at = {what: [problem] if problem else []}, data.draw(st.sampled_from(STEPS))
            return await super().hear(what, *given)

    async def decided(decision: Decision) -> None:
        nonlocal is_durable
        await asyncio.sleep(data.draw(st.sampled_from([0.0, 0.2])))
        is_durable = True

    async def fly() -> Exception | None:
        try:
            assert await desk.flight(*ranks).run(decided) == 5
        except (RankAwayError, RankRefusedError) as error:
            await asyncio.gather(*desk.tasks)
            return error
        return None

    ranks = [Unsteady(0), Unsteady(1), Unsteady(5, RankPhase.JOINING)]
    try:
        asyncio.set_event_loop(loop)
        problem = loop.run_until_complete(fly())
    finally:
        loop.end()
        loop.close()
        asyncio.set_event_loop(None)
    assert is_durable == (problem is None)
    for rank in ranks[:2]:
        if problem is None:
            assert rank.epoch == 1
        else:
            assert rank.asked[-1] == "abort"


STEPS = ["commit", "status", ""]

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
