"""What the ranks show, on the machine: a death that nobody tells, ranks that stand still, the end of all processes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from evenkeel.contracts.verdict_ids import verdict_id
from evenkeel.history.records import EvidenceRecord, JobStateRecord, VerdictRecord
from evenkeel.history.vocabulary import JobState, PlanMode, VerdictKind
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.dispatch.agreement import NothingLeftError, RecoveryNeededError
from evenkeel.services.scheduler.domain.profiles import JobEnded
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason
from evenkeel.services.scheduler.jobs import events, steps
from evenkeel.services.scheduler.jobs.events import Silence
from evenkeel.services.scheduler.jobs.job import Job, Timer
from tests.unit.scheduler.jobs.play import HOME, PROFILE, RULES, START, Play, registration, state_of

_SUSPECT = (3, 0)
_OTHERS = tuple(rank for rank in HOME.ranks if rank != 3)


def suspected(play: Play) -> None:
    """The stream to a process broke, the others parked, and no verdict came."""
    play.on(events.StreamBroken(_SUSPECT, "reset"))
    play.park(*_OTHERS)
    step = play.fire(Timer.VERDICT)
    assert steps.Ask(Timer.VERDICT, 0.5, (_SUSPECT,)) in step.then


def test_a_death_that_nobody_tells_is_decided_with_the_detector_s_id() -> None:
    play = Play()
    play.park(3)
    suspected(play)
    step = play.on(events.Answered(Timer.VERDICT, {_SUSPECT: Silence.AWAY}))
    (verdict,) = [one for one in step.save if isinstance(one, VerdictRecord)]
    assert verdict.verdict_id == verdict_id("job", VerdictKind.FAIL_STOP, 3, 0)
    assert (verdict.kind, verdict.confidence, verdict.decided_at) == (VerdictKind.FAIL_STOP, 0.97, play.at)
    assert (verdict.first_iteration, verdict.decided_iteration) == (6, 6)
    assert verdict.evidence == (
        EvidenceRecord(
            name="process",
            value=1.0,
            unit="",
            text="the scheduler saw it itself: the stream broke (reset), the controller does not answer, ranks "
            "[0, 1, 2, 4, 5, 6, 7] are parked, and no verdict has come",
        ),
    )
    assert not play.known.ranks[3].alive
    assert len(step.meanwhile) == 1
    again = play.on(events.VerdictsTaken((replace(verdict, decided_at=play.at),)))
    assert (len(play.known.incidents), again.then) == (1, [])


@pytest.mark.parametrize(("answer", "gone"), [(Silence.AWAY, [2, 3]), (Silence.REFUSED, [3])])
def test_the_suspects_of_a_node_that_are_gone_are_one_incident(answer: Silence, gone: list[int]) -> None:
    play, other = Play(), (2, 0)
    play.on(events.StreamBroken(other, "reset"))
    play.on(events.StreamBroken(_SUSPECT, "reset"))
    play.park(*(rank for rank in _OTHERS if rank != 2))
    assert steps.Ask(Timer.VERDICT, 0.5, (other, _SUSPECT)) in play.fire(Timer.VERDICT).then
    step = play.on(events.Answered(Timer.VERDICT, {_SUSPECT: Silence.AWAY, other: answer}))
    (verdict,) = [one for one in step.save if isinstance(one, VerdictRecord)]
    assert [one.rank for one in verdict.culprits] == gone
    assert play.job.suspects == {}
    # The detector names each process by itself: those that are known to be gone are not counted again.
    play.say(VerdictKind.FAIL_STOP, gone[0])
    assert len(play.known.incidents) == 1


@pytest.mark.parametrize("answer", [Silence.REFUSED, state_of(3, RankPhase.TRAINING)])
def test_a_suspect_that_is_there_is_left_alone(answer: Silence | RankState) -> None:
    play = Play()
    suspected(play)
    assert play.on(events.Answered(Timer.VERDICT, {_SUSPECT: answer})).save == []
    assert (play.job.suspects, play.fire(Timer.VERDICT).then) == ({}, [])


def test_a_suspect_is_looked_at_again_while_the_others_train_and_forgotten_after_its_verdict() -> None:
    play = Play()
    play.on(events.StreamBroken(_SUSPECT, "reset"))
    assert play.timers_set() == [Timer.VERDICT]
    play.fire(Timer.VERDICT)
    assert play.step.then == [steps.SetTimer(Timer.VERDICT, 0.5)], "nobody is asked while nobody waits"
    play.say(VerdictKind.FAIL_STOP, 3)
    assert (play.fire(Timer.VERDICT).then, play.job.suspects) == ([], {})


@pytest.mark.parametrize(("process", "registered"), [((9, 0), True), ((3, 1), True), (_SUSPECT, False)])
def test_a_stream_of_a_process_that_nobody_counts_on_is_nothing(process: tuple[int, int], registered: bool) -> None:
    assert Play(registered=registered).on(events.StreamBroken(process, "reset")).then == []


def on_two_nodes(*others: int) -> Play:
    """These ranks are on a node of their own."""
    play = Play()
    for rank in others:
        play.job = replace(play.job, known=play.known.with_rank(replace(play.known.ranks[rank], node="m")))
    return play


def test_suspects_of_several_nodes_are_an_incident_of_each_and_one_that_was_not_asked_yet_waits() -> None:
    play, suspects, late = on_two_nodes(1, 7), [(0, 0), (1, 0)], (7, 0)
    for one in suspects:
        play.on(events.StreamBroken(one, "reset"))
    play.park(*(rank for rank in HOME.ranks if rank > 1))
    play.fire(Timer.VERDICT)
    play.on(events.StreamBroken(late, "reset"))
    step = play.on(events.Answered(Timer.VERDICT, dict.fromkeys(suspects, Silence.AWAY)))
    found = [one for one in step.save if isinstance(one, VerdictRecord)]
    assert [[culprit.rank for culprit in one.culprits] for one in found] == [[0], [1]]
    assert list(play.job.suspects) == [late]


def test_a_later_suspect_of_another_node_is_waited_for_as_long_as_the_first() -> None:
    play, late = on_two_nodes(7), (7, 0)
    play.on(events.StreamBroken(_SUSPECT, "reset"))
    play.at += timedelta(seconds=1.0)
    play.on(events.StreamBroken(late, "reset"))
    play.park(*(rank for rank in HOME.ranks if rank not in (3, 7)))
    play.at -= timedelta(seconds=0.9)  # the timer was set by the first
    assert play.fire(Timer.VERDICT).then == [steps.Ask(Timer.VERDICT, 0.5, (_SUSPECT,))]
    step = play.on(events.Answered(Timer.VERDICT, {_SUSPECT: Silence.AWAY}))
    assert (list(play.job.suspects), play.known.ranks[7].alive) == ([late], True)
    assert steps.SetTimer(Timer.VERDICT, pytest.approx(0.82)) in step.then
    assert steps.Ask(Timer.VERDICT, 0.5, (late,)) in play.fire(Timer.VERDICT).then


def test_a_rank_that_parked_and_is_away_too_waits_for_the_others_still() -> None:
    play = on_two_nodes(7)
    play.on(events.StreamBroken(_SUSPECT, "reset"))
    play.park(7)
    play.on(events.StreamBroken((7, 0), "reset"))
    assert steps.Ask(Timer.VERDICT, 0.5, (_SUSPECT,)) in play.fire(Timer.VERDICT).then
    play.on(events.Answered(Timer.VERDICT, dict.fromkeys((_SUSPECT, (7, 0)), Silence.AWAY)))
    assert [one.accused for one in play.known.incidents] == [{_SUSPECT}]


def test_what_an_earlier_process_of_a_rank_said_is_not_said_by_the_one_that_is_there_now() -> None:
    parked = state_of(3, RankPhase.PARKED)
    moment = steps.Moment(at=START, states={3: parked}, rules=RULES)
    assert [moment.said_by(process) for process in ((3, 0), (3, 1), (4, 0))] == [parked, None, None]


def all_training() -> dict[tuple[int, int], RankState | Silence]:
    return {(rank, 0): state_of(rank, RankPhase.PARKED) for rank in HOME.ranks}


def one_away() -> dict[tuple[int, int], RankState | Silence]:
    return {**all_training(), _SUSPECT: Silence.AWAY}


def one_done() -> dict[tuple[int, int], RankState | Silence]:
    return {**all_training(), _SUSPECT: state_of(3, RankPhase.FINISHED)}


@pytest.mark.parametrize(("answers", "recovers"), [(all_training, True), (one_away, False), (one_done, False)])
def test_ranks_that_are_parked_with_all_alive_get_a_recovery(
    answers: Callable[[], dict[tuple[int, int], RankState | Silence]], recovers: bool
) -> None:
    play = Play()
    play.park(*_OTHERS[:1])
    assert play.step.then == [steps.SetTimer(Timer.STANDSTILL, 3.0)]
    play.park(*_OTHERS[1:])
    everybody = tuple((rank, 0) for rank in HOME.ranks)
    assert play.fire(Timer.STANDSTILL).then == [steps.Ask(Timer.STANDSTILL, 1.0, everybody)]
    step = play.on(events.Answered(Timer.STANDSTILL, answers()))
    assert len(step.meanwhile) == int(recovers)
    assert steps.SetTimer(Timer.STANDSTILL, 3.0) in step.then
    if recovers:
        play.solved()
        assert (play.plan.record.mode, play.plan.record.layout.replicas) == (PlanMode.RECOVER, HOME.replicas)


def test_ranks_that_are_recovered_already_or_moved_on_need_no_second_recovery() -> None:
    play = Play()
    play.park(*_OTHERS)
    (question,) = play.say(VerdictKind.FAIL_STOP, 3).meanwhile
    assert play.fire(Timer.STANDSTILL).then == [steps.SetTimer(Timer.STANDSTILL, 3.0)], "the planner is asked"
    play.solved(question)
    assert play.fire(Timer.STANDSTILL).then == [steps.SetTimer(Timer.STANDSTILL, 3.0)]
    play.agreed()
    play.applied()
    assert play.fire(Timer.STANDSTILL).then == []
    assert play.on(events.Answered(Timer.STANDSTILL, all_training())).meanwhile == [], "they were asked before that"


def test_a_recovery_that_failed_is_tried_again_after_its_pause_and_not_before() -> None:
    play = Play()
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    play.solved()
    play.park(*HOME.ranks)
    play.failed(RecoveryNeededError("parked"))
    assert Timer.AGAIN in play.timers_set()
    assert play.fire(Timer.STANDSTILL).then == [steps.SetTimer(Timer.STANDSTILL, 3.0)]
    assert play.on(events.Answered(Timer.STANDSTILL, all_training())).meanwhile == []
    assert len(play.fire(Timer.AGAIN).meanwhile) == 1


def test_ranks_that_stand_still_are_recovered_though_a_boundary_is_asked_for_or_under_way_and_once() -> None:
    play, waits = Play(), [steps.SetTimer(Timer.STANDSTILL, 3.0)]
    (slow,) = play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4).meanwhile
    play.park(*_OTHERS)
    (question,) = play.on(events.Answered(Timer.STANDSTILL, all_training())).meanwhile
    play.solved(slow)
    assert play.known.flight is None, "what is needed now is something else"
    play.solved(question)
    play.agreed()
    assert play.applied().meanwhile == []
    play.say(VerdictKind.COMPUTE_SLOW, 2, throughput=0.4)
    play.solved()
    play.park(*_OTHERS)
    assert isinstance(play.fire(Timer.STANDSTILL).then[0], steps.Ask)
    play.on(events.Answered(Timer.STANDSTILL, all_training()))
    play.solved()
    assert play.fire(Timer.STANDSTILL).then == waits, "a recovery is under way"
    play.failed(NothingLeftError("blocks 1"))
    assert play.fire(Timer.STANDSTILL).then == waits, "there is nothing to recover from"


@pytest.mark.parametrize(
    ("answer", "ends"), [(Silence.AWAY, True), (Silence.REFUSED, False), (state_of(3, RankPhase.TRAINING), False)]
)
def test_a_job_is_over_when_the_detector_says_so_and_nobody_answers(answer: Silence | RankState, ends: bool) -> None:
    play = Play()
    assert play.on(JobEnded(job_id="job")).then == [steps.SetTimer(Timer.ENDED, 60.0)]
    assert play.fire(Timer.ENDED).then == [steps.Ask(Timer.ENDED, 2.0)]
    play.on(events.Answered(Timer.ENDED, {**dict.fromkeys(all_training(), Silence.AWAY), _SUSPECT: answer}))
    assert (play.known.finished, play.said is JobState.FINISHED) == (ends, ends)
    assert [one.detail for one in play.step.save if isinstance(one, JobStateRecord)] == ["finished"] * ends


def test_who_leaves_late_does_not_keep_a_job_that_is_over_for_ever() -> None:
    play, away = Play(), dict.fromkeys(all_training(), Silence.AWAY)
    play.on(JobEnded(job_id="job"))
    play.fire(Timer.ENDED)
    step = play.on(events.Answered(Timer.ENDED, {**away, _SUSPECT: state_of(3, RankPhase.TRAINING)}))
    assert step.then == [steps.SetTimer(Timer.ENDED, 60.0)]
    assert play.fire(Timer.ENDED).then == [steps.Ask(Timer.ENDED, 2.0)]
    play.on(events.Answered(Timer.ENDED, away))
    assert play.known.finished


def test_a_job_of_which_somebody_is_gone_is_not_over() -> None:
    play = Play()
    play.on(JobEnded(job_id="job"))
    play.say(VerdictKind.FAIL_STOP, 3)
    assert play.fire(Timer.ENDED).then == []


@pytest.mark.parametrize("how", ["verdict", "profile", "registration"])
def test_a_job_that_goes_on_or_loses_somebody_while_all_are_asked_is_not_over(how: str) -> None:
    play = Play()
    play.on(JobEnded(job_id="job"))
    play.fire(Timer.ENDED)
    if how == "verdict":
        play.say(VerdictKind.FAIL_STOP, 3)
    else:
        play.on(PROFILE if how == "profile" else events.RanksRegistered((registration(3, 1),)))
    play.on(events.Answered(Timer.ENDED, dict.fromkeys(all_training(), Silence.AWAY)))
    assert not play.known.finished


def test_who_goes_on_with_a_job_has_the_whole_time_again_when_it_ends_again() -> None:
    play = Play()
    play.on(JobEnded(job_id="job"))
    play.on(PROFILE)
    assert play.on(JobEnded(job_id="job")).then == [steps.SetTimer(Timer.ENDED, 60.0)]


def test_a_second_look_at_a_stuck_job_that_lost_somebody_asks_for_nothing() -> None:
    play = Play()
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.96)
    play.solved()
    play.say(VerdictKind.FAIL_STOP, 3)
    play.solved()
    play.failed(NothingLeftError("nobody holds it"))
    assert play.known.stuck is not None
    assert play.fire(Timer.SECOND_LOOK).meanwhile == []


def test_a_job_none_of_whose_processes_comes_is_stuck_until_one_does() -> None:
    play = Play(registered=False, profiled=False)
    play.fire(Timer.START)
    assert play.known.stuck is not None
    assert (play.known.stuck.reason, play.known.stuck.since) == (StuckReason.NOT_STARTED, play.at)
    assert play.said is JobState.STUCK
    assert Play().fire(Timer.START).save == []


def asked(step: steps.Step) -> list[steps.Ask]:
    return [one for one in step.then if isinstance(one, steps.Ask)]


def all_away(play: Play) -> dict[tuple[int, int], RankState | Silence]:
    """All streams broke, long enough ago; what they are answered by when all are asked."""
    answers: dict[tuple[int, int], RankState | Silence] = {}
    for process in all_training():
        play.on(events.StreamBroken(process, "refused"))
        answers[process] = Silence.AWAY
    return answers


def test_a_job_of_which_nothing_is_heard_is_stuck_and_nobody_is_accused_until_somebody_answers() -> None:
    play = Play()
    answers = all_away(play)
    assert asked(play.fire(Timer.VERDICT)) == []
    play.at += timedelta(seconds=RULES.unheard_seconds)
    step = play.fire(Timer.VERDICT)
    assert asked(step) == [steps.Ask(Timer.VERDICT, 0.5, tuple(answers))]
    assert play.known.stuck is None
    play.on(events.Answered(Timer.VERDICT, answers))
    assert play.known.stuck is not None
    assert (play.known.stuck.reason, play.said) == (StuckReason.UNHEARD, JobState.STUCK)
    since = play.known.stuck
    play.at += timedelta(seconds=7)
    play.fire(Timer.VERDICT)
    play.on(events.Answered(Timer.VERDICT, answers))
    assert play.known.stuck == since
    assert play.known.incidents == ()
    play.fire(Timer.VERDICT)
    play.on(events.Answered(Timer.VERDICT, answers | {_SUSPECT: state_of(3, RankPhase.TRAINING)}))
    assert play.known.stuck is None
    assert play.said is JobState.RUNNING


@pytest.mark.parametrize("heard", ["profile", "one stream", "newcomer"])
def test_a_job_of_which_anything_is_heard_is_not_stuck(heard: str) -> None:
    play = Play()
    answers = all_away(play)
    if heard == "one stream":
        play = Play()
        for process in answers.keys() - {_SUSPECT}:
            play.on(events.StreamBroken(process, "refused"))
    if heard == "newcomer":
        play.on(events.RanksRegistered((registration(3, 1),)))
    play.at += timedelta(seconds=RULES.unheard_seconds)
    if heard == "profile":
        play.on(PROFILE)
    assert asked(play.fire(Timer.VERDICT)) == []
    play.on(events.Answered(Timer.VERDICT, answers))
    assert play.known.stuck is None


def test_whoever_goes_on_with_a_job_of_which_nothing_was_heard_listens_anew() -> None:
    play = Play()
    answers = all_away(play)
    play.at += timedelta(seconds=RULES.unheard_seconds)
    play.fire(Timer.VERDICT)
    play.on(events.Answered(Timer.VERDICT, answers))
    assert play.said is JobState.STUCK
    play.job = Job(known=play.known, salt="another")
    play.on(events.Began())
    assert (play.known.stuck, play.said) == (None, JobState.RUNNING)


@pytest.mark.parametrize("how", ["profile", "registration", "verdict"])
def test_a_job_of_which_something_is_heard_again_is_not_stuck_from_that_moment_on(how: str) -> None:
    play = Play()
    all_away(play)
    unheard_for(play)
    assert play.said is JobState.STUCK
    if how == "profile":
        play.on(replace(PROFILE, iteration=20))
    elif how == "registration":
        play.on(events.RanksRegistered((registration(3),)))
    else:
        play.say(VerdictKind.FAIL_STOP, 3)
        assert len(play.step.meanwhile) == 1
    assert (play.known.stuck, play.said) == (None, JobState.RESHAPING if how == "verdict" else JobState.RUNNING)


def test_a_second_look_that_came_due_while_nothing_was_heard_is_made_up_for() -> None:
    play = Play()
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.96)
    play.solved()
    all_away(play)
    unheard_for(play)
    assert play.fire(Timer.SECOND_LOOK).meanwhile == []
    assert len(play.on(events.RanksRegistered((registration(3),))).meanwhile) == 1


def unheard_for(play: Play, seconds: float = 0.0) -> steps.Step:
    """The time for being unheard is over, by so much more; all are asked then, if anybody is, and nobody answers."""
    play.at += timedelta(seconds=RULES.unheard_seconds + seconds)
    step = play.fire(Timer.VERDICT)
    play.on(events.Answered(Timer.VERDICT, dict.fromkeys(all_training(), Silence.AWAY)))
    return step


def test_a_job_that_is_stuck_for_another_reason_or_seen_to_end_says_that() -> None:
    play = Play()
    all_away(play)
    play.on(JobEnded(job_id="job"))
    assert asked(unheard_for(play)) == []
    assert play.known.stuck is None
    play = Play()
    all_away(play)
    stuck = Stuck(reason=StuckReason.NO_LAYOUT, detail="", since=play.at)
    play.job = replace(play.job, known=replace(play.known, stuck=stuck))
    assert asked(unheard_for(play)) == []
    assert play.known.stuck == stuck


def test_who_registers_again_and_again_is_heard_and_slow_iterations_take_longer() -> None:
    play = Play()
    all_away(play)
    play.at += timedelta(seconds=RULES.unheard_seconds)
    play.on(events.RanksRegistered((registration(3),)))
    assert asked(play.fire(Timer.VERDICT)) == []
    play.on(events.Answered(Timer.VERDICT, dict.fromkeys(all_training(), Silence.AWAY)))
    assert play.known.stuck is None
    play = Play()
    play.on(replace(PROFILE, iteration=6, iteration_seconds=30.0))
    all_away(play)
    unheard_for(play)
    assert play.known.stuck is None
    unheard_for(play, 240.0)
    assert play.known.stuck is not None


def test_those_that_are_done_are_not_waited_for() -> None:
    play = Play()
    play.states[3] = state_of(3, RankPhase.FINISHED)
    for process in all_training().keys() - {_SUSPECT}:
        play.on(events.StreamBroken(process, "reset"))
    unheard_for(play)
    assert play.known.stuck is not None
