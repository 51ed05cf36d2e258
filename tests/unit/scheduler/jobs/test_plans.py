"""A job's plans on the machine: asked for, superseded, decided, told once."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evenkeel.history.errors import FinishedJobError, UnknownRankError
from evenkeel.history.records import (
    ActionRecord,
    AlternativeRecord,
    IncidentEventRecord,
    IncidentRecord,
    JobStateRecord,
    PlanEventRecord,
    PlanRecord,
    PlanStatus,
    VerdictRecord,
)
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanMode, PlanState, VerdictKind
from evenkeel.layouts.rank_state import Ballot, RankPhase
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.search.solver import solve, solve_at_once
from evenkeel.planning.solution import NoPlanError
from evenkeel.services.scheduler.dispatch.agreement import NothingLeftError, RecoveryNeededError
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError, StaleBallotError
from evenkeel.services.scheduler.domain.stuck import StuckReason
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.job import Question, Timer
from evenkeel.services.scheduler.plans.outlook import Outlook
from tests.unit.scheduler.jobs.play import HOME, PROFILE, Play, registration, state_of

_TERMINAL = {PlanState.ABORTED, PlanState.APPLIED}


def test_a_death_is_saved_with_what_it_leads_to_and_the_planner_works_meanwhile() -> None:
    play = Play()
    step = play.say(VerdictKind.FAIL_STOP, 3)
    assert [type(one) for one in step.save] == [VerdictRecord, IncidentRecord, JobStateRecord]
    assert step.then == step.save[:1], "watchers are told"
    assert step.save[-1] == JobStateRecord(job_id="job", state=JobState.RESHAPING, at=play.at)
    assert len(step.meanwhile) == 1
    step = play.solved()
    assert [type(one) for one in step.save] == [PlanRecord]
    assert (play.plan.record.mode, play.plan.record.epoch) == (PlanMode.RECOVER, 1)
    assert {rank for rank, _ in play.plan.participants} == {*HOME.ranks} - {3}
    plan = play.plan.record
    assert PlanStatus(plan=plan, state=PlanState.PROPOSED, at=plan.proposed_at) in step.then
    play.agreed()
    assert play.known.layouts.keys() == {0, 1}
    play.applied()
    assert PlanStatus(plan=plan, state=PlanState.APPLIED, at=play.at, first_iteration=7) in play.step.then
    assert (play.known.flight, play.known.epoch, play.said) == (None, 1, JobState.RUNNING)
    assert play.step.meanwhile == [], "what the planner found is as good as it gets"
    assert list(play.plan_states.values()) == [[PlanState.PROPOSED, PlanState.COMMITTED, PlanState.APPLIED]]


@pytest.mark.parametrize("profiled", [True, False])
def test_a_plan_is_recorded_with_all_that_was_found_and_with_seconds_where_the_job_s_speed_is_known(
    profiled: bool,
) -> None:
    play = Play(profiled=profiled)
    (question,) = play.say(VerdictKind.FAIL_STOP, 3).meanwhile
    solution = solve(question.known.situation(TransitionCosts()))
    play.on(events.Solved(question, solution, 0.25))
    (weighed,) = [one for one in play.step.then if isinstance(one, steps.Weighed)]
    assert (weighed.choice, weighed.solve_seconds) == ("apply", 0.25)
    known = 1.0 if profiled else 0.0
    assert play.plan.record == PlanRecord(
        plan_id="job-1-salt",
        job_id="job",
        incident_id=play.known.incidents[0].incident_id,
        mode=PlanMode.RECOVER,
        epoch=1,
        layout=solution.layout,
        actions=tuple(
            ActionRecord(lever=one.lever, description=one.description, gain_seconds=known * one.gain_seconds)
            for one in solution.actions
        ),
        alternatives=tuple(
            AlternativeRecord(name=one.name, predicted_seconds=known * one.predicted_seconds, reason=one.reason)
            for one in solution.alternatives
        ),
        idle_seconds=known * solution.idle_seconds,
        predicted_seconds=known * solution.predicted_seconds,
        cost_seconds=solution.price.pause_seconds,
        proportional_bound=solution.proportional_bound,
        reason=f"{solution.reason} {weighed.reason}",
        solve_seconds=0.25,
        proposed_at=play.at,
        throughputs={rank: 1.0 for rank in HOME.ranks if rank != 3},
    )
    assert solution.actions
    assert solution.alternatives


def test_a_makeshift_plan_is_taken_and_once_it_is_applied_the_planner_is_asked_for_a_better_one() -> None:
    play = Play()
    (question,) = play.say(VerdictKind.FAIL_STOP, 3).meanwhile
    rough = solve_at_once(question.known.situation(TransitionCosts()))
    play.on(events.Solved(question, rough, 0.01, is_makeshift=True))
    assert play.plan.record.layout == rough.layout
    assert play.agreed().meanwhile == []
    (again,) = play.applied().meanwhile
    assert isinstance(again, Question)
    # Nobody there again: what is in force is kept, and looked at again later.
    same = solve_at_once(again.known.situation(TransitionCosts()))
    play.on(events.Solved(again, same, 0.01, is_makeshift=True))
    assert (play.known.flight, play.step.meanwhile, play.timers_set()) == (None, [], [Timer.SECOND_LOOK])
    assert play.on(events.VerdictsTaken(())).meanwhile == []


def test_that_there_is_no_makeshift_plan_is_not_the_planner_s_word() -> None:
    play = Play()
    (question,) = play.say(VerdictKind.FAIL_STOP, 3).meanwhile
    play.on(events.Solved(question, NoPlanError("nothing"), 0.01, is_makeshift=True))
    assert steps.SetTimer(Timer.AGAIN, 5.0) in play.step.then
    assert isinstance(play.fire(Timer.AGAIN).meanwhile[0], Question)


def test_what_is_known_by_now_is_what_the_planner_is_asked_and_an_answer_to_less_is_dropped() -> None:
    play = Play()
    (first,) = play.say(VerdictKind.FAIL_STOP, 3).meanwhile
    (second,) = play.say(VerdictKind.FAIL_STOP, 6).meanwhile
    assert play.solved(first).save == []
    play.solved(second)
    assert {3, 6}.isdisjoint(play.plan.record.layout.ranks)


def test_an_answer_about_a_rank_that_is_well_again_by_now_is_dropped() -> None:
    play = Play()
    (asked,) = play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4).meanwhile
    assert play.say(VerdictKind.RECOVERED, 1, throughput=1.0).meanwhile == []
    play.solved(asked)
    assert (play.known.flight, play.step.meanwhile) == (None, [])


@pytest.mark.parametrize("incarnation", [0, 1])
def test_a_process_that_hangs_is_told_to_leave_also_a_later_one_that_waits(incarnation: int) -> None:
    play = Play()
    play.on(events.RanksRegistered((registration(3, 1),)))
    step = play.say(VerdictKind.HANG, 3, incarnation=incarnation)
    evicted = [one for one in step.then if isinstance(one, steps.Evict)]
    assert [one.info.process for one in evicted] == [(3, incarnation)]


@pytest.mark.parametrize(("kind", "can_reshape"), [(VerdictKind.FAIL_STOP, True), (VerdictKind.HANG, False)])
def test_who_is_gone_or_may_go_on_with_the_others_is_not_told_to_leave(kind: VerdictKind, can_reshape: bool) -> None:
    step = Play(can_reshape=can_reshape).say(kind, 3)
    assert not [one for one in step.then if isinstance(one, steps.Evict)]


def test_who_goes_on_with_a_job_asks_the_planner_again() -> None:
    play = Play()
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    play.job = replace(play.job, question=None)
    assert len(play.on(events.Began()).meanwhile) == 1


@pytest.mark.parametrize("is_decided", [False, True])
def test_who_goes_on_with_a_job_takes_back_what_was_not_decided_and_tells_who_hangs_to_leave(is_decided: bool) -> None:
    play = Play()
    play.say(VerdictKind.HANG, 3)
    play.solved()
    if is_decided:
        play.agreed()
    flight = play.plan
    step = play.on(events.Began())
    assert [one.info.process for one in step.then if isinstance(one, steps.Evict)] == [(3, 0)]
    aborted = [(one.plan_id, one.detail) for one in step.save if isinstance(one, PlanEventRecord)]
    if is_decided:
        assert (aborted, play.known.flight, step.meanwhile) == ([], flight, [])
    else:
        assert aborted == [(flight.record.plan_id, "the scheduler began anew before it was decided")]
        assert (play.known.flight, len(step.meanwhile)) == (None, 1)


def test_a_question_that_is_asked_already_is_not_asked_again() -> None:
    play = Play()
    play.say(VerdictKind.FAIL_STOP, 3)
    assert play.say(VerdictKind.JITTER, 1).meanwhile == []


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_plan_that_counts_on_one_who_died_is_aborted_and_is_told_once(is_decided: bool) -> None:
    play = Play()
    play.say(VerdictKind.FAIL_STOP, 3)
    play.solved()
    if is_decided:
        play.agreed()
    late = play.plan
    play.say(VerdictKind.FAIL_STOP, 6)
    assert (PlanState.COMMITTED in play.plan_states[late.record.plan_id]) is is_decided
    assert play.plan_states[late.record.plan_id][-1] is PlanState.ABORTED
    play.solved()
    assert play.plan.record.epoch == late.record.epoch + 1
    for event in (events.Applied(late.record.plan_id, 7), events.Failed(late.record.plan_id, RankAwayError("away"))):
        before = play.job
        step = play.on(event)
        assert (step.job, step.save, step.then) == (before, [], [])
    play.agreed()
    play.applied()
    assert [[state for state in states if state in _TERMINAL] for states in play.plan_states.values()] == [
        [PlanState.ABORTED],
        [PlanState.APPLIED],
    ]


@pytest.mark.parametrize("is_decided", [True, False])
def test_ranks_that_took_up_a_plan_are_recovered_also_when_nobody_is_gone_any_more(is_decided: bool) -> None:
    play = Play()
    play.say(VerdictKind.FAIL_STOP, 3)
    play.carried_out()
    back(play, 3, 1)
    play.solved()
    if is_decided:
        play.agreed()
    play.say(VerdictKind.FAIL_STOP, 3, incarnation=1)
    (question,) = play.step.meanwhile
    back(play, 3, 2)
    (newer,) = play.step.meanwhile
    play.solved(question)
    play.solved(newer)
    assert play.plan.record.mode is (PlanMode.RECOVER if is_decided else PlanMode.BOUNDARY)


def back(play: Play, rank: int, incarnation: int) -> None:
    play.on(events.RanksRegistered((registration(rank, incarnation),)))
    play.say(VerdictKind.REJOINED, rank, incarnation=incarnation)


def test_a_recovery_that_counts_on_nobody_who_died_goes_on() -> None:
    play = Play()
    play.say(VerdictKind.FAIL_STOP, 3)
    play.solved()
    plan = play.plan
    play.on(events.RanksRegistered((registration(3, 1),)))
    play.say(VerdictKind.FAIL_STOP, 3, incarnation=1)
    assert play.known.flight is plan


def test_a_plan_waits_for_ranks_that_are_coming_up_and_a_recovery_not_for_ever() -> None:
    play = Play(registered=False)
    play.on(events.RanksRegistered(tuple(registration(rank) for rank in HOME.ranks if rank != 5)))
    assert (play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4).meanwhile, play.timers_set()) == ([], [])
    assert play.say(VerdictKind.FAIL_STOP, 3).meanwhile == []
    assert steps.SetTimer(Timer.REGISTRATIONS, 30.0) in play.step.then
    assert len(play.fire(Timer.REGISTRATIONS).meanwhile) == 1
    play.solved()
    play.agreed()
    assert play.plan.record.layout.ranks == tuple(rank for rank in HOME.ranks if rank not in (3, 5))


@pytest.mark.parametrize("can_reshape", [True, False])
def test_a_job_that_is_ending_gets_advice_and_no_plan(can_reshape: bool) -> None:
    play = Play(can_reshape=can_reshape)
    play.states[0] = state_of(0, RankPhase.FINISHED)
    assert len(play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4).meanwhile) == (not can_reshape)


def test_advice_waits_for_nobody() -> None:
    play = Play(registered=False)
    play.on(events.RanksRegistered(tuple(registration(rank, can_reshape=False) for rank in HOME.ranks if rank != 5)))
    assert len(play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4).meanwhile) == 1


def test_a_slow_rank_waits_for_the_profile_and_a_death_does_not() -> None:
    play = Play(profiled=False)
    assert play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4).meanwhile == []
    assert steps.SetTimer(Timer.PROFILE, 15.0) in play.step.then
    assert len(play.fire(Timer.PROFILE).meanwhile) == 1
    assert len(Play(profiled=False).say(VerdictKind.FAIL_STOP, 3).meanwhile) == 1


@pytest.mark.parametrize(
    ("error", "seconds", "epoch", "mode"),
    [
        (RankAwayError("away"), 0.1, 2, PlanMode.BOUNDARY),
        (RecoveryNeededError("parked"), 0.1, 2, PlanMode.RECOVER),
        (StaleBallotError(Ballot(0, 40), "promised"), 0.0, 41, PlanMode.BOUNDARY),
    ],
)
def test_after_a_failure_it_is_tried_again_beyond_all_epochs_that_were_heard_of(
    error: Exception, seconds: float, epoch: int, mode: PlanMode
) -> None:
    play = Play()
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    play.solved()
    step = play.failed(error)
    assert [one for one in step.then if isinstance(one, steps.SetTimer)] == [steps.SetTimer(Timer.AGAIN, seconds)]
    assert next(one.detail for one in step.save if isinstance(one, PlanEventRecord)) in ("away", "parked", "promised")
    play.fire(Timer.AGAIN)
    play.solved()
    assert (play.plan.record.epoch, play.plan.record.mode) == (epoch, mode)
    longer = 2.0 * seconds or 0.1
    assert steps.SetTimer(Timer.AGAIN, longer) in play.failed(RankAwayError("away")).then


@pytest.mark.parametrize(
    ("kind", "throughput", "longest_seconds"),
    [(VerdictKind.COMPUTE_SLOW, 0.4, 600.0), (VerdictKind.FAIL_STOP, 0.0, 5.0)],
)
def test_pauses_between_plans_that_fail_grow_until_one_is_applied(
    kind: VerdictKind, throughput: float, longest_seconds: float
) -> None:
    play, pauses = Play(), []
    play.say(kind, 1, throughput=throughput)
    for _ in range(15):
        play.solved()
        step = play.failed(RankAwayError("away"))
        pauses += [one.seconds for one in step.then if isinstance(one, steps.SetTimer)]
        assert play.on(PROFILE).meanwhile == [], "what else is heard does not end the pause"
        play.fire(Timer.AGAIN)
    assert pauses == [min(0.1 * 2.0**number, longest_seconds) for number in range(15)]
    play.carried_out()
    play.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.4)
    play.solved()
    assert steps.SetTimer(Timer.AGAIN, 0.1) in play.failed(RankAwayError("away")).then


def test_a_slice_that_nobody_holds_is_waited_for() -> None:
    play = Play()
    play.say(VerdictKind.FAIL_STOP, 3)
    play.solved()
    plan = play.plan.record
    play.failed(NothingLeftError("blocks 1"))
    (note,) = [one for one in play.step.save if isinstance(one, IncidentEventRecord)]
    incident_id = play.known.incidents[0].incident_id
    assert (note.incident_id, note.kind, note.reference) == (incident_id, IncidentEventKind.NOTE, plan.plan_id)
    stuck = play.known.stuck
    assert stuck is not None
    assert (stuck.reason, play.said) == (StuckReason.NOTHING_HELD, JobState.STUCK)
    asks, left = steps.Ask(Timer.POSSIBLE, 1.0), [rank for rank in HOME.ranks if rank != 3]
    assert asks in play.step.then
    parked = {(rank, 0): state_of(rank, RankPhase.PARKED) for rank in left}
    play.on(events.Answered(Timer.POSSIBLE, parked))
    assert (play.step.meanwhile, play.step.then) == ([], [steps.SetTimer(Timer.POSSIBLE, 0.5)])
    assert asks in play.fire(Timer.POSSIBLE).then
    for waited_seconds, pause in ((2.0, 2.0), (60.0, 5.0)):
        play.at = stuck.since + timedelta(seconds=waited_seconds, milliseconds=-10)
        assert play.on(events.Answered(Timer.POSSIBLE, parked)).then == [steps.SetTimer(Timer.POSSIBLE, pause)]
        play.fire(Timer.POSSIBLE)
    play.on(events.Answered(Timer.POSSIBLE, parked))
    seen = {process: replace(state, checkpoint_steps=(4,)) for process, state in parked.items()}
    assert play.on(events.Answered(Timer.POSSIBLE, {**seen, (0, 0): events.Silence.REFUSED})).meanwhile == []
    assert len(play.on(events.Answered(Timer.POSSIBLE, seen)).meanwhile) == 1
    assert (play.known.stuck, play.fire(Timer.POSSIBLE).then) == (None, [])
    assert play.on(events.Answered(Timer.POSSIBLE, seen)).then == [], "it comes too late"


def test_a_job_that_is_stuck_for_the_same_reason_has_been_so_since_the_first_time() -> None:
    play, found = Play(), []
    (question,) = play.say(VerdictKind.FAIL_STOP, 3).meanwhile
    for problem in ("no rank", "no rank", "no memory"):
        play.on(events.Solved(question, NoPlanError(problem), 0.01))
        assert play.known.stuck is not None
        assert (play.known.stuck.reason, play.known.stuck.detail) == (StuckReason.NO_LAYOUT, problem)
        found.append(play.at - play.known.stuck.since)
        (question,) = play.say(VerdictKind.JITTER, 1).meanwhile
    assert found == [timedelta(), timedelta(milliseconds=20), timedelta()]
    play.solved(question)
    assert (play.known.stuck, play.said) == (None, JobState.RESHAPING)


def test_a_replacement_that_dies_under_its_plan_is_itself_replaced() -> None:
    play = Play()
    play.say(VerdictKind.FAIL_STOP, 3)
    play.carried_out()
    back(play, 3, 1)
    play.solved()
    assert 3 in play.plan.record.layout.ranks
    back(play, 3, 2)
    (question,) = play.step.meanwhile
    assert play.known.flight is None
    assert not play.known.newcomers
    assert question.known.ranks[3].process == (3, 2)


def test_a_layout_that_is_kept_is_weighed_again_and_ever_later() -> None:
    play, pauses = Play(), []
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.96)
    for _ in range(3):
        play.solved()
        pauses += [one.seconds for one in play.step.then if isinstance(one, steps.SetTimer)]
        play.fire(Timer.SECOND_LOOK)
    assert pauses == [30.0, 60.0, 120.0]
    play.say(VerdictKind.COMPUTE_SLOW, 3, throughput=0.4)
    play.carried_out()
    play.say(VerdictKind.COMPUTE_SLOW, 2, throughput=0.96)
    play.solved()
    assert [one for one in play.step.then if isinstance(one, steps.SetTimer)] == [
        steps.SetTimer(Timer.SECOND_LOOK, 30.0)
    ]
    assert play.on(events.VerdictsTaken(())).meanwhile == [], "nothing has changed since"


def test_what_a_person_reads_of_a_job_that_cannot_go_on() -> None:
    play = Play()
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    play.solved()
    play.say(VerdictKind.FAIL_STOP, 3)
    play.solved()
    play.failed(RankAwayError("rank 2 is away"))
    play.fire(Timer.AGAIN)
    play.solved()
    play.failed(NothingLeftError("blocks 1"))
    play.fire(Timer.AGAIN)
    play.on(events.Finish("lost"))
    told = [one for one in play.saved if isinstance(one, JobStateRecord | PlanEventRecord | IncidentEventRecord)]
    assert [one.detail for one in told if one.detail] == [
        "somebody it counts on is gone",
        "rank 2 is away",
        "blocks 1",
        "the job cannot go on: blocks 1",
        "blocks 1",
        "the job finished",
        "the job finished",
        "failed: lost",
    ]
    assert [states[-1] for states in play.plan_states.values()] == [PlanState.ABORTED] * 3


def test_a_person_is_told_once_what_would_help_a_job_that_nobody_can_reshape() -> None:
    play = Play(can_reshape=False)
    (question,) = play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.5).meanwhile
    solution = solve(question.known.situation(TransitionCosts()))
    plan, advised, note = play.on(events.Solved(question, solution, 0.25)).save
    assert isinstance(plan, PlanRecord)
    assert isinstance(advised, PlanEventRecord)
    assert isinstance(note, IncidentEventRecord)
    (incident,) = play.known.incidents
    assert (plan.mode, plan.epoch, plan.incident_id) == (PlanMode.BOUNDARY, 1, incident.incident_id)
    assert (advised.plan_id, advised.state) == (plan.plan_id, PlanState.ADVISED)
    assert (note.incident_id, note.reference, note.at) == (incident.incident_id, plan.plan_id, play.at)
    assert note.detail == advised.detail
    assert "at 0.50 of healthy speed" in note.detail
    (weighed,) = [one for one in play.step.then if isinstance(one, steps.Weighed)]
    assert (weighed.choice, weighed.solve_seconds) == ("apply", 0.25)
    assert plan.reason == f"{solution.reason} {weighed.reason}"
    assert plan.idle_seconds == solution.idle_seconds > 0.0
    assert (plan.solve_seconds, plan.proposed_at, play.known.flight, play.known.stuck) == (0.25, play.at, None, None)
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.5)
    assert play.solved().save == []
    play.say(VerdictKind.FAIL_STOP, 3)
    assert (play.said, play.saved[-1].detail) == (JobState.DEGRADED, "ranks [3] are gone")  # type: ignore[attr-defined]
    assert isinstance(dead := play.solved().save[0], PlanRecord)
    assert (dead.mode, dead.incident_id) == (PlanMode.RECOVER, play.known.incidents[-1].incident_id)


def test_advice_where_no_plan_pays_or_there_is_none_names_no_plan() -> None:
    play = Play(can_reshape=False)
    flips = {1: (play.at.timestamp(),) * 30}
    play.job = replace(play.job, known=replace(play.known, outlook=Outlook(flips=flips)))
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.6)
    (kept,) = play.solved().save
    (weighed,) = [one for one in play.step.then if isinstance(one, steps.Weighed)]
    assert weighed.choice == "keep"
    assert isinstance(kept, IncidentEventRecord)
    assert kept.detail.endswith(f". {weighed.reason}")
    (question,) = play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.5).meanwhile
    (note,) = play.on(events.Solved(question, NoPlanError("nothing"), 0.25)).save
    assert isinstance(note, IncidentEventRecord)
    assert (note.detail[-1], play.known.stuck) == (".", None)


def test_a_job_that_is_over_takes_nothing_in() -> None:
    play = Play()
    play.say(VerdictKind.FAIL_STOP, 3)
    play.solved()
    play.on(events.Finish("lost"))
    last = play.saved[-1]
    assert isinstance(last, JobStateRecord)
    assert (last.state, last.detail) == (JobState.FINISHED, "failed: lost")
    assert [states[-1] for states in play.plan_states.values()] == [PlanState.ABORTED]
    assert play.say(VerdictKind.FAIL_STOP, 4).save == []
    with pytest.raises(FinishedJobError, match="'job'"):
        play.on(events.RanksRegistered((registration(3, 1),)))


def test_a_rank_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(UnknownRankError, match="'job' has no rank 8: it was registered with 8, 0 to 7"):
        Play().on(events.RanksRegistered((registration(8),)))


class AnyStory(RuleBasedStateMachine):
    """Verdicts, answers and failures in any order; what was asked may be answered at any time, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play()
        self.questions: list[Question] = []
        self.incarnations = dict.fromkeys(HOME.ranks, 0)

    def _ask(self) -> None:
        self.questions += self.play.step.meanwhile

    @rule(rank=st.sampled_from(HOME.ranks))
    def dies(self, rank: int) -> None:
        self.play.say(VerdictKind.FAIL_STOP, rank, incarnation=self.incarnations[rank])
        self._ask()

    @rule(rank=st.sampled_from(HOME.ranks), speed=st.sampled_from([0.4, 0.9]))
    def slows_down(self, rank: int, speed: float) -> None:
        self.play.say(VerdictKind.COMPUTE_SLOW, rank, incarnation=self.incarnations[rank], throughput=speed)
        self._ask()

    @rule(rank=st.sampled_from(HOME.ranks))
    def comes_back(self, rank: int) -> None:
        self.incarnations[rank] += 1
        self.play.on(events.RanksRegistered((registration(rank, self.incarnations[rank]),)))
        self._ask()
        self.play.say(VerdictKind.REJOINED, rank, incarnation=self.incarnations[rank])
        self._ask()

    @precondition(lambda self: self.questions)
    @rule(data=st.data())
    def answers(self, data: st.DataObject) -> None:
        self.play.solved(self.questions.pop(data.draw(st.integers(0, len(self.questions) - 1))))
        self._ask()

    @precondition(lambda self: self.play.known.flight and self.play.plan.decision is None)
    @rule()
    def agree(self) -> None:
        self.play.agreed()

    @precondition(lambda self: self.play.known.flight and self.play.plan.decision is not None)
    @rule()
    def apply(self) -> None:
        self.play.applied()
        self._ask()

    @precondition(lambda self: self.play.known.flight)
    @rule(error=st.sampled_from([RankAwayError("away"), StaleBallotError(Ballot(0, 9), ""), NothingLeftError("")]))
    def fails(self, error: Exception) -> None:
        self.play.failed(error)
        self._ask()
        self.play.fire(Timer.AGAIN)
        self._ask()

    @invariant()
    def it_is_told_once_and_in_order(self) -> None:
        for states in self.play.plan_states.values():
            assert len(set(states)) == len(states)
            assert len(_TERMINAL & {*states}) <= 1
        epochs = [one.epoch for one in self.play.saved if isinstance(one, PlanRecord)]
        assert epochs == sorted(set(epochs))

    @invariant()
    def its_parts_agree(self) -> None:
        assert self.play.said is self.play.job.known.state

    @invariant()
    def whoever_is_lost_is_seen_to(self) -> None:
        job = self.play.job
        waits = job.known.flight or job.question or job.known.stuck or job.timers & {Timer.AGAIN, Timer.REGISTRATIONS}
        assert not job.known.lost or waits


TestAnyStory = AnyStory.TestCase
TestAnyStory.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
