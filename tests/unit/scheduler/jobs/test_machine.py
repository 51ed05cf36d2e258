"""What else happens to a job, on the machine: how processes end, what is suspected, what profiles say."""

from dataclasses import replace
from datetime import timedelta

import pytest

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history.errors import UnknownRankError
from evenkeel.history.records import (
    IncidentEventRecord,
    IncidentRecord,
    JobStateRecord,
    PlanEventRecord,
    RankExitRecord,
    VerdictRecord,
)
from evenkeel.history.vocabulary import IncidentEventKind, JobState, PlanState, VerdictKind
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile
from evenkeel.services.scheduler.jobs import events, machine, steps
from evenkeel.services.scheduler.jobs.job import Timer
from evenkeel.services.scheduler.plans.hindsight import Hindsight
from tests.unit.scheduler.jobs.play import START, WORKLOAD, Play, registration


def exit_of(rank: int, **how: object) -> RankExitRecord:
    return replace(RankExitRecord(job_id="job", rank=rank, incarnation=0, code=1, at=START), **how)


def profile(play: Play, iteration: int, seconds: float = 1.7) -> steps.Step:
    return play.on(
        JobProfile(
            job_id="job",
            iteration=iteration,
            epoch=play.known.epoch,
            workload=WORKLOAD,
            iteration_seconds=seconds,
            throughputs={},
        )
    )


def test_an_error_of_the_program_is_an_incident_and_a_signal_is_none() -> None:
    play = Play()
    killed = exit_of(2, code=0, signal=9)
    assert play.on(events.ExitsReported((killed,))).save == [killed]
    raised = exit_of(3, last_line="KeyError: 'x'")
    step = play.on(events.ExitsReported((raised,)))
    assert [type(one) for one in step.save] == [RankExitRecord, VerdictRecord, IncidentRecord, JobStateRecord]
    (incident,) = play.known.incidents
    assert (incident.kind, incident.accused) == (VerdictKind.PROGRAM_ERROR, {(3, 0)})
    assert len(step.meanwhile) == 1
    with pytest.raises(UnknownRankError):
        play.on(events.ExitsReported((exit_of(8),)))


def test_the_cause_of_a_death_that_was_told_before_is_added_to_it() -> None:
    play = Play()
    play.say(VerdictKind.FAIL_STOP, 3)
    raised = exit_of(3, last_line="KeyError: 'x'")
    told, cause = play.on(events.ExitsReported((raised,))).save
    assert told == raised
    assert isinstance(cause, IncidentEventRecord)
    assert (cause.kind, cause.detail) == (IncidentEventKind.CAUSE, "KeyError: 'x'")


def test_a_replacement_in_its_place_ends_the_death_before_it() -> None:
    play = Play(can_reshape=False)
    play.say(VerdictKind.FAIL_STOP, 2)
    play.say(VerdictKind.REJOINED, 2, incarnation=1)
    saved = play.on(events.RanksRegistered((registration(2, 1, can_reshape=False),))).save
    assert [(one.kind, one.at) for one in saved if isinstance(one, IncidentEventRecord)] == [
        (IncidentEventKind.RESOLVED, play.at)
    ]


@pytest.mark.parametrize(("age_seconds", "is_probed"), [(29.99, True), (30.0, False)])
def test_a_suspicion_is_probed_unless_it_is_from_before_an_outage(age_seconds: float, is_probed: bool) -> None:
    play = Play()
    play.at = START + timedelta(seconds=59.99)
    suspicion = Suspicion(
        job_id="job",
        rank=1,
        incarnation=0,
        peer_rank=2,
        peer_incarnation=0,
        iteration=3,
        at_unix_seconds=START.timestamp() + 60.0 - age_seconds,
    )
    assert play.on(suspicion).then == [suspicion] * is_probed


@pytest.mark.parametrize(("late_seconds", "left_seconds"), [(20.0, 99.99), (500.0, 0.0)])
def test_what_is_waited_for_when_somebody_goes_on_with_a_job(late_seconds: float, left_seconds: float) -> None:
    play = Play(registered=False)
    play.on(JobEnded(job_id="job"))
    play.job, play.at = replace(play.job, timers=frozenset()), START + timedelta(seconds=late_seconds)
    waits = {one.key: one.seconds for one in play.on(events.Began()).then if isinstance(one, steps.SetTimer)}
    assert waits == {Timer.START: pytest.approx(left_seconds), Timer.ENDED: 60.0}


def test_a_job_that_is_profiled_again_is_not_at_its_end() -> None:
    play = Play()
    play.on(JobEnded(job_id="job"))
    profile(play, 6)
    assert not play.job.seen_to_end


def test_a_plan_is_measured_by_profiles_and_the_job_learns_what_it_fell_short_by() -> None:
    play = Play()
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    play.carried_out()
    plan = play.known.unmeasured.record if play.known.unmeasured else None
    assert plan is not None
    assert profile(play, 8).save == [], "the first iterations contain the switch"
    measured = next(one for one in profile(play, 20, seconds=3.4).save if isinstance(one, PlanEventRecord))
    assert (measured.plan_id, measured.state, measured.at) == (plan.plan_id, PlanState.MEASURED, play.at)
    assert measured.measured_seconds is not None
    levers = [one.lever for one in plan.actions]
    assert play.known.hindsight == Hindsight().after(plan.predicted_seconds, measured.measured_seconds, levers)
    assert levers


def test_a_profile_that_makes_no_sense_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(machine, "on_profile", raises)
    play = Play(profiled=False)
    before = play.known
    step = profile(play, 5)
    note = steps.Note("a profile that makes no sense", {"iteration": 5, "error": "ZeroDivisionError()"})
    assert (play.known, step.save, step.keep, step.then) == (before, [], False, [note])


def test_the_first_profile_ends_the_wait_for_one() -> None:
    play = Play(profiled=False)
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    step = profile(play, 5)
    assert (len(step.meanwhile), step.keep, Timer.PROFILE in play.job.timers) == (1, True, False)
    assert not profile(play, 6).keep


@pytest.mark.parametrize(("can_reshape", "lost_seconds"), [(True, 5.02), (False, 0.0)])
def test_ranks_that_wait_for_a_dead_one_stand_still_until_the_job_ends(can_reshape: bool, lost_seconds: float) -> None:
    play = Play(can_reshape=can_reshape)
    play.say(VerdictKind.FAIL_STOP, 3)
    play.at += timedelta(seconds=5)
    resolved = play.on(events.Finish()).save[0]
    assert isinstance(resolved, IncidentEventRecord)
    assert resolved.lost_seconds == pytest.approx(lost_seconds)


def test_a_job_that_ends_says_how_and_what_was_open() -> None:
    play = Play()
    play.say(VerdictKind.COMPUTE_SLOW, 1, throughput=0.4)
    resolved, state = play.on(events.Finish()).save
    assert isinstance(resolved, IncidentEventRecord)
    assert (resolved.kind, resolved.at, resolved.detail) == (IncidentEventKind.RESOLVED, play.at, "the job finished")
    assert state == JobStateRecord(job_id="job", state=JobState.FINISHED, at=play.at, detail="finished")
    assert (play.known.finished, play.known.incidents, play.job.question) == (True, (), None)
