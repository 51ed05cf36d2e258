"""One plan's run as a machine: what it does about each event, and that no order of events leaves anybody behind."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError, NothingLeftError
from evenkeel.services.scheduler.dispatch.plan_run import PlanRun, Stage
from evenkeel.services.scheduler.dispatch.protocol import (
    Decision,
    RankAwayError,
    RankGoneError,
    RankRefusedError,
    Reshape,
    StaleBallotError,
)
from evenkeel.services.scheduler.dispatch.question import Question
from evenkeel.services.scheduler.dispatch.run_events import (
    Answered,
    Ask,
    Dropped,
    Effect,
    Event,
    Failed,
    Landed,
    Overdue,
    Save,
    Saved,
    Told,
    Verb,
)

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


def answered(rank: int, verb: Verb, epoch: int = 0) -> Answered:
    return Answered(rank, verb, state(rank, epoch=epoch))


def asks(verb: Verb, *ranks: int, again: bool = False) -> list[Effect]:
    return [Ask(rank, verb, again) for rank in ranks]


PREPARED: list[Event] = [answered(0, PREPARE), answered(1, PREPARE)]
DECIDED: list[Event] = [*PREPARED, Saved()]
COMMITTED: list[Event] = [*DECIDED, answered(0, COMMIT), answered(1, COMMIT)]
OFF: list[Event] = [Answered(1, PREPARE, NO), Dropped()]


def run_after(events: Sequence[Event], mode: PlanMode = PlanMode.BOUNDARY) -> PlanRun:
    run = PlanRun(question(mode))
    assert run.begin() == asks(PREPARE, *EVERYBODY)
    for event in events:
        run.on(event)
    return run


@pytest.mark.parametrize(
    ("before", "event", "effects", "stage"),
    [
        ([], answered(0, PREPARE), [], Stage.PREPARING),
        ([], Answered(0, PREPARE, AWAY), asks(PREPARE, 0, again=True), Stage.PREPARING),
        ([], Answered(5, PREPARE, AWAY), asks(PREPARE, 5, again=True), Stage.PREPARING),
        ([], Answered(5, PREPARE, NO), [], Stage.PREPARING),
        ([], Answered(1, PREPARE, NO), [Failed(NO)], Stage.OFF),
        ([Answered(1, PREPARE, AWAY)], Overdue(), [Failed(AWAY)], Stage.OFF),
        ([], Dropped(), asks(ABORT, *EVERYBODY), Stage.OFF),
        (PREPARED, Dropped(), [], Stage.DECIDING),
        (PREPARED, Overdue(), [], Stage.DECIDING),
        (PREPARED, Answered(5, PREPARE, AWAY), [], Stage.DECIDING),
        (PREPARED, Saved(), asks(COMMIT, *EVERYBODY), Stage.DECIDED),
        (DECIDED, answered(0, COMMIT), [], Stage.DECIDED),
        (DECIDED, Answered(0, COMMIT, AWAY), asks(COMMIT, 0, again=True), Stage.DECIDED),
        (DECIDED, Answered(0, COMMIT, NO), [Failed(NO)], Stage.OVER),
        (DECIDED, Answered(5, COMMIT, NO), [], Stage.DECIDED),
        (DECIDED, Dropped(), [], Stage.DECIDED),
        (COMMITTED, Overdue(), asks(STATUS, 0, 1), Stage.DECIDED),
        (COMMITTED, Told(state(0, epoch=1)), [], Stage.DECIDED),
        ([*COMMITTED, Told(state(0, epoch=1))], Overdue(), asks(STATUS, 1), Stage.DECIDED),
        ([*COMMITTED, Told(state(1, epoch=1))], Told(state(0, epoch=1)), [Landed(5)], Stage.OVER),
        ([*DECIDED, Told(state(0, epoch=1))], Told(state(1, epoch=1)), [Landed(5)], Stage.OVER),
        ([*COMMITTED, Told(state(1, epoch=1)), Told(state(1, RankPhase.PARKED, 1))], Told(state(0, epoch=1)), [],
         Stage.DECIDED),
        (OFF, Answered(1, ABORT, AWAY), asks(ABORT, 1, again=True), Stage.OFF),
        ([*OFF, answered(0, ABORT), answered(5, ABORT)], Answered(1, ABORT, GONE), [], Stage.OVER),
        ([*OFF, answered(0, ABORT), answered(5, ABORT)], Answered(1, ABORT, NO), [], Stage.OVER),
        ([*OFF, answered(0, ABORT), answered(5, ABORT)], answered(1, PREPARE), [], Stage.OFF),
        ([*OFF, answered(0, ABORT), answered(5, ABORT)], Told(replace(state(1), promised=Ballot(3, 2))), [],
         Stage.OVER),
        ([*OFF, answered(0, ABORT), answered(5, ABORT)], Told(replace(state(1), promised=Ballot(3, 1))), [],
         Stage.OFF),
        ([*OFF, answered(0, ABORT), answered(5, ABORT)], Dropped(), asks(ABORT, 1), Stage.OFF),
    ],
)  # fmt: skip
def test_what_it_does_about_an_event(
    before: Sequence[Event], event: Event, effects: list[Effect], stage: Stage
) -> None:
    run = run_after(before)
    assert (run.on(event), run.stage) == (effects, stage)


def test_a_refusal_of_a_promise_is_told_as_it_is() -> None:
    stale = StaleBallotError(Ballot(3, 7), "no")
    assert run_after([]).on(Answered(0, PREPARE, stale)) == [Failed(stale)]


def test_ranks_that_say_why_they_cannot_go_over_end_a_decided_plan() -> None:
    run = run_after(COMMITTED)
    (failed,) = run.on(Told(replace(state(1), failed_epoch=1, failed_reason="PeerLost")))
    assert isinstance(failed, Failed)
    assert str(failed.error) == "rank 1: PeerLost"
    assert run.on(Dropped()) == []


def test_a_boundary_needs_everybody_and_a_recovery_waits_for_as_long_as_it_takes() -> None:
    run = run_after([answered(0, PREPARE)])
    (failed,) = run.on(Answered(1, PREPARE, state(1, RankPhase.PARKED)))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NoAgreementError)
    assert run_after([Answered(0, PREPARE, AWAY)], PlanMode.RECOVER).on(Overdue()) == []


def test_a_recovery_of_which_nobody_holds_anything_comes_to_nothing() -> None:
    run = run_after([], PlanMode.RECOVER)
    empty = [replace(state(rank, RankPhase.JOINING), held_epochs=()) for rank in (0, 1)]
    assert run.on(Answered(0, PREPARE, empty[0])) == []
    (failed,) = run.on(Answered(1, PREPARE, empty[1]))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NothingLeftError)


def test_a_decided_plan_goes_on_after_a_restart_with_its_commits() -> None:
    decision = Decision(from_epoch=0, from_layout=LAYOUT, sources=(0, 1), steps_applied=9)
    run = PlanRun(question(PlanMode.RECOVER), decision)
    assert run.begin() == asks(COMMIT, *EVERYBODY)
    for event in (answered(0, COMMIT), answered(1, COMMIT), Told(state(0, epoch=1))):
        assert run.on(event) == []
    assert run.on(Told(state(1, epoch=1))) == [Landed(9)]


@given(st.data())
def test_no_order_of_answers_leaves_anybody_behind(data: st.DataObject) -> None:
    """Whatever comes, and in whichever order: it ends once, after everybody has taken the plan, or is told that it is
    off; and no commit leaves before the decision is durable."""
    run = PlanRun(question(PlanMode.BOUNDARY))
    asked, told_off, ends, is_durable = run.begin(), set[int](), list[Effect](), False
    for _ in range(60):
        match asked.pop(data.draw(st.integers(0, len(asked) - 1))):
            case Save():
                is_durable, effects = True, run.on(Saved())
            case Ask(rank, verb):
                assert is_durable or verb is not COMMIT
                epoch = 1 if verb is STATUS or (verb is COMMIT and data.draw(st.booleans())) else 0
                answers: list[RankState | RankAwayError | RankRefusedError] = [state(rank, epoch=epoch)] * 4
                answers += [AWAY, NO] if verb is PREPARE else [AWAY]
                answer = data.draw(st.sampled_from(answers))
                effects = run.on(Answered(rank, verb, answer))
                if verb is ABORT and answer is not AWAY:
                    told_off.add(rank)
            case Landed() | Failed() as end:
                ends.append(end)
                effects = run.on(Dropped())
        if not effects and run.stage is Stage.DECIDED and not asked:
            effects = run.on(Overdue())
        asked += effects
        if run.stage is Stage.OVER and not any(isinstance(one, Landed | Failed) for one in asked):
            break
    assert len(ends) == 1 or run.stage in (Stage.PREPARING, Stage.DECIDED, Stage.OFF)
    if run.stage is Stage.OVER and isinstance(ends[0], Failed):
        assert told_off == set(EVERYBODY)
