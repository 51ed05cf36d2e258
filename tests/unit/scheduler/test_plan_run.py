"""One plan's run as a machine: what it does about each event, and that no order of events leaves anybody behind."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError, NothingLeftError
from evenkeel.services.scheduler.dispatch.plan_run import Ask, PlanRun, Stage, Verb
from evenkeel.services.scheduler.dispatch.protocol import (
    Decision,
    RankAwayError,
    RankGoneError,
    RankRefusedError,
    Reshape,
    StaleBallotError,
)
from evenkeel.services.scheduler.dispatch.question import Question

LAYOUT = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=1, num_micro_batches=2)
EVERYBODY = (0, 1, 5)
AWAY, GONE, NO = RankAwayError("away"), RankGoneError("gone"), RankRefusedError("no")
PREPARE, COMMIT, ABORT, STATUS = Verb


def question(mode: PlanMode) -> Question:
    reshape = Reshape(job_id="job", plan_id="plan", epoch=1, mode=mode, to_layout=LAYOUT, term=3)
    return Question(
        reshape=reshape,
        model=gpt(2),
        epoch=0,
        layout=LAYOUT,
        layouts={0: LAYOUT},
        concerned=frozenset({0, 1}),
        others=frozenset({5}),
    )


def state(rank: int, phase: RankPhase = RankPhase.TRAINING, epoch: int = 0) -> RankState:
    return RankState(rank=rank, incarnation=0, phase=phase, epoch=epoch, steps_applied=5 + rank, held_epochs=(0,))


Event = Callable[[PlanRun], list[Ask]]
Answer = RankState | RankAwayError | RankRefusedError


def answered(rank: int, verb: Verb, answer: Answer | None = None) -> Event:
    return lambda run: run.answered(rank, verb, answer or state(rank))


def told(state: RankState) -> Event:
    return lambda run: run.told(state)


def asks(verb: Verb, *ranks: int, again: bool = False) -> list[Ask]:
    return [Ask(rank, verb, again) for rank in ranks]


SAVED, OVERDUE, DROPPED = PlanRun.saved, PlanRun.overdue, PlanRun.dropped
PREPARED: list[Event] = [answered(0, PREPARE), answered(1, PREPARE)]
DECIDED: list[Event] = [*PREPARED, SAVED]
COMMITTED: list[Event] = [*DECIDED, answered(0, COMMIT), answered(1, COMMIT)]
OFF: list[Event] = [answered(1, PREPARE, NO), DROPPED]
MOSTLY_TOLD: list[Event] = [*OFF, answered(0, ABORT), answered(5, ABORT)]


def run_after(events: Sequence[Event], mode: PlanMode = PlanMode.BOUNDARY) -> PlanRun:
    run = PlanRun(question(mode))
    assert run.begin() == asks(PREPARE, *EVERYBODY)
    for event in events:
        event(run)
    return run


@pytest.mark.parametrize(
    ("before", "event", "expected", "stage", "end"),
    [
        ([], answered(0, PREPARE), [], Stage.PREPARING, None),
        ([], answered(0, PREPARE, AWAY), asks(PREPARE, 0, again=True), Stage.PREPARING, None),
        ([], answered(5, PREPARE, AWAY), asks(PREPARE, 5, again=True), Stage.PREPARING, None),
        ([], answered(5, PREPARE, NO), [], Stage.PREPARING, None),
        ([], answered(1, PREPARE, NO), [], Stage.OFF, NO),
        ([answered(1, PREPARE, AWAY)], OVERDUE, [], Stage.OFF, AWAY),
        ([], DROPPED, asks(ABORT, *EVERYBODY), Stage.OFF, None),
        ([answered(0, PREPARE)], answered(1, PREPARE), [], Stage.DECIDING, None),
        (PREPARED, DROPPED, [], Stage.DECIDING, None),
        (PREPARED, OVERDUE, [], Stage.DECIDING, None),
        (PREPARED, answered(5, PREPARE, AWAY), [], Stage.DECIDING, None),
        (PREPARED, SAVED, asks(COMMIT, *EVERYBODY), Stage.DECIDED, None),
        (DECIDED, answered(0, COMMIT), [], Stage.DECIDED, None),
        (DECIDED, answered(0, COMMIT, AWAY), asks(COMMIT, 0, again=True), Stage.DECIDED, None),
        (DECIDED, answered(0, COMMIT, NO), [], Stage.OVER, NO),
        (DECIDED, answered(5, COMMIT, NO), [], Stage.DECIDED, None),
        (DECIDED, answered(0, STATUS, NO), [], Stage.DECIDED, None),
        (DECIDED, DROPPED, [], Stage.DECIDED, None),
        (COMMITTED, OVERDUE, asks(STATUS, 0, 1), Stage.DECIDED, None),
        (COMMITTED, told(state(0, epoch=1)), [], Stage.DECIDED, None),
        ([*COMMITTED, told(state(0, epoch=1))], OVERDUE, asks(STATUS, 1), Stage.DECIDED, None),
        ([*COMMITTED, told(state(1, epoch=1))], told(state(0, epoch=1)), [], Stage.OVER, 5),
        ([*DECIDED, told(state(0, epoch=1))], told(state(1, epoch=1)), [], Stage.OVER, 5),
        # It has been there and has parked again, without one that is gone, say: what follows is another plan's.
        ([*COMMITTED, told(state(1, RankPhase.PARKED, 1))], told(state(0, epoch=1)), [], Stage.OVER, 5),
        ([*COMMITTED, told(state(1, RankPhase.PARKED))], told(state(0, epoch=1)), [], Stage.DECIDED, None),
        (OFF, answered(1, ABORT, AWAY), asks(ABORT, 1, again=True), Stage.OFF, NO),
        (MOSTLY_TOLD, answered(1, ABORT, GONE), [], Stage.OVER, NO),
        (MOSTLY_TOLD, answered(1, ABORT, NO), [], Stage.OVER, NO),
        (MOSTLY_TOLD, answered(1, PREPARE), [], Stage.OFF, NO),
        (MOSTLY_TOLD, told(replace(state(1), promised=Ballot(3, 2))), [], Stage.OVER, NO),
        (MOSTLY_TOLD, told(replace(state(1), promised=Ballot(3, 1))), [], Stage.OFF, NO),
        (MOSTLY_TOLD, DROPPED, asks(ABORT, 1), Stage.OFF, NO),
    ],
)  # fmt: skip
def test_what_it_does_about_an_event(
    before: Sequence[Event], event: Event, expected: list[Ask], stage: Stage, end: object
) -> None:
    run = run_after(before)
    assert (event(run), run.stage, run.end) == (expected, stage, end)


def test_a_refusal_of_a_promise_is_told_as_it_is() -> None:
    stale = StaleBallotError(Ballot(3, 7), "no")
    assert run_after([answered(0, PREPARE, stale)]).end is stale


def test_ranks_that_say_why_they_cannot_go_over_end_a_decided_plan() -> None:
    run = run_after([*COMMITTED, told(replace(state(1), failed_epoch=1, failed_reason="PeerLost"))])
    assert str(run.end) == "rank 1: PeerLost"
    assert (run.dropped(), run.stage) == ([], Stage.OVER)


def test_a_boundary_needs_everybody_and_a_recovery_waits_for_as_long_as_it_takes() -> None:
    run = run_after([answered(0, PREPARE), answered(1, PREPARE, state(1, RankPhase.PARKED))])
    assert isinstance(run.end, NoAgreementError)
    run = run_after([answered(0, PREPARE, AWAY)], PlanMode.RECOVER)
    assert (run.overdue(), run.end) == ([], None)


def test_a_recovery_of_which_nobody_holds_anything_comes_to_nothing() -> None:
    run = run_after([], PlanMode.RECOVER)
    empty = [replace(state(rank, RankPhase.JOINING), held_epochs=()) for rank in (0, 1)]
    run.answered(0, PREPARE, empty[0])
    assert run.end is None
    run.answered(1, PREPARE, empty[1])
    assert isinstance(run.end, NothingLeftError)


def test_a_decided_plan_goes_on_after_a_restart_with_its_commits() -> None:
    decision = Decision(from_epoch=0, from_layout=LAYOUT, sources=(0, 1), steps_applied=9)
    run = PlanRun(question(PlanMode.RECOVER), decision)
    assert run.begin() == asks(COMMIT, *EVERYBODY)
    for event in (answered(0, COMMIT), answered(1, COMMIT), told(state(0, epoch=1))):
        assert (event(run), run.end) == ([], None)
    run.told(state(1, epoch=1))
    assert run.end == 9


@given(st.data())
def test_no_order_of_answers_leaves_anybody_behind(data: st.DataObject) -> None:
    """Whatever comes, and in whichever order: it ends once, after everybody has taken the plan, or is told that it is
    off; and no commit leaves before the decision is durable."""
    run = PlanRun(question(PlanMode.BOUNDARY))
    asked, told_off, end, is_durable = run.begin(), set[int](), None, False
    for _ in range(60):
        if run.stage is Stage.DECIDING and data.draw(st.booleans()):
            is_durable = True
            asked += run.saved()
        if run.end is not None and end is None:
            end = run.end
            asked += run.dropped()
        if not asked and run.stage is Stage.DECIDED:
            asked += run.overdue()
        if not asked:
            break
        rank, verb, _ = asked.pop(data.draw(st.integers(0, len(asked) - 1)))
        assert is_durable or verb is not COMMIT
        epoch = 1 if verb is STATUS or (verb is COMMIT and data.draw(st.booleans())) else 0
        answers: list[Answer] = [state(rank, epoch=epoch)] * 4
        answers += [AWAY, NO] if verb is PREPARE else [AWAY]
        answer = data.draw(st.sampled_from(answers))
        asked += run.answered(rank, verb, answer)
        if verb is ABORT and answer is not AWAY:
            told_off.add(rank)
    assert run.end == (end or run.end)
    assert asked or run.stage in (Stage.DECIDING, Stage.OVER)
    if run.stage is Stage.OVER and isinstance(run.end, Exception):
        assert told_off == set(EVERYBODY)
