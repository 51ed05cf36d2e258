"""One job as a pure machine: an event in, a step out.

Each event is taken after the one before it, and its step is durable before anything is done about it. Plans follow from
the state, never from an event: whatever is lost in a crash, a restart that rebuilds the state asks for the same again.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from evenkeel.history.errors import FinishedJobError, UnknownRankError
from evenkeel.history.records import JobRecord, JobStateRecord, RankExitRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import JobState, PlanState
from evenkeel.services.scheduler.domain.exits import not_started, on_exits
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed, new_job
from evenkeel.services.scheduler.domain.losses import due_accounts, with_standstill
from evenkeel.services.scheduler.domain.profiles import JobProfile, Measured, on_profile
from evenkeel.services.scheduler.domain.replacements import hanging, in_their_places, on_rank_registered
from evenkeel.services.scheduler.domain.transitions import on_verdict
from evenkeel.services.scheduler.jobs import events, evidence, flights, planning
from evenkeel.services.scheduler.jobs.job import Job, Timer, counted
from evenkeel.services.scheduler.jobs.steps import Draft, EndJob, Evict, Moment, Probe, Step, Tell

_STALE_SUSPICION_SECONDS = 30.0


def registered_job(record: JobRecord, salt: str) -> Job:
    """A job that was registered just now; to be told that it :class:`~events.Began`."""
    return Job(known=new_job(record), salt=salt, said=JobState.RUNNING)


def on(job: Job, event: events.Event, moment: Moment) -> Step:
    """What an event leads to.

    Args:
        job: The job.
        event: What happened.
        moment: What else it depends on.

    Raises:
        FinishedJobError: A process registers in a job that has ended.
        UnknownRankError: The job's layout has no such rank.
    """
    draft = Draft(job=job, moment=moment)
    if job.known.finished:
        if isinstance(event, events.RanksRegistered):
            raise FinishedJobError(job.known.job_id)
        return draft.step()
    _take(draft, event)
    _say_state(draft)
    return draft.step()


def _take(draft: Draft, event: events.Event) -> None:
    match event:
        case events.Began():
            _begin(draft, event.again)
        case events.RanksRegistered():
            _register(draft, event.records)
        case events.ExitsReported():
            _exit(draft, event.exits)
        case events.VerdictsTaken():
            take_verdicts(draft, event.verdicts)
        case events.ProfileTaken():
            _profile(draft, event.profile)
        case events.AllEnded():
            evidence.all_ended(draft)
        case events.Suspected():
            # One from before an outage is not worth a probe.
            if draft.moment.at.timestamp() - event.suspicion.at_unix_seconds < _STALE_SUSPICION_SECONDS:
                draft.then.append(Probe(event.suspicion))
        case events.RankSaid():
            evidence.rank_said(draft, event.state)
        case events.StreamBroken():
            evidence.stream_broken(draft, event)
        case events.Answered():
            _answered(draft, event)
        case events.TimerFired():
            _timer_fired(draft, event)
        case events.Finish():
            _finish(draft, event.failure)
        case _:
            planning.on_run(draft, event)


def _begin(draft: Draft, again: bool) -> None:
    """Somebody goes on with the job: all that was under way and is not in its state begins anew."""
    known, rules, flight = draft.known, draft.moment.rules, draft.known.flight
    left = known.registered_at.timestamp() + rules.start_deadline_seconds - draft.moment.at.timestamp()
    draft.set_timer(Timer.START, max(0.0, left))
    if not again:
        return
    draft.known = replace(not_started(known, draft.moment.at), changed=True)
    if draft.job.seen_to_end:
        draft.set_timer(Timer.ENDED, rules.ended_seconds)
    draft.then += [Evict(info, known.top_epoch) for info in hanging(known)]
    if flight is not None and flight.decision is None:
        flights.ground(draft, "the scheduler began anew before it was decided")
    elif flight is not None:
        draft.note("finishing a decided plan", plan_id=flight.record.plan_id, epoch=flight.record.epoch)
    planning.react(draft)


def _register(draft: Draft, records: Sequence[RankRecord]) -> None:
    _require(draft.known, records)
    known = reduce(on_rank_registered, records, draft.known)
    draft.known, over = in_their_places(known, draft.moment.at)
    draft.save += [*records, *over]
    planning.react(draft)


def _exit(draft: Draft, exits: Sequence[RankExitRecord]) -> None:
    _require(draft.known, exits)
    draft.known, records, verdict = on_exits(draft.known, exits, draft.moment.at)
    draft.save += [*exits, *records]
    take_verdicts(draft, [] if verdict is None else [verdict])


def _require(known: JobKnowledge, named: Sequence[RankRecord | RankExitRecord]) -> None:
    for each in named:
        if each.rank not in known.ranks:
            raise UnknownRankError(known.job_id, each.rank, known.ranks)


def take_verdicts(draft: Draft, verdicts: Sequence[VerdictRecord]) -> None:
    """Verdicts of the job, in order, whoever they are from; those that were seen before change nothing."""
    before, evict = draft.known, set[tuple[int, int]]()
    for verdict in verdicts:
        if verdict.verdict_id not in draft.known.seen:
            draft.then.append(Tell(verdict))
        outcome = on_verdict(draft.known, verdict)
        draft.known = outcome.job
        draft.save += [verdict, *outcome.records]
        evict.update(outcome.evict)
    left = counted(draft.known)
    gone = [info for process, info in counted(before).items() if process in evict and process not in left]
    draft.then += [Evict(info, draft.known.top_epoch) for info in gone]
    planning.react(draft)


def _profile(draft: Draft, profile: JobProfile) -> None:
    draft.job = replace(draft.job, seen_to_end=False)
    try:
        known, measured = on_profile(draft.known, profile)
        known, accounts = due_accounts(known, draft.moment.at)
    except (ArithmeticError, ValueError) as error:  # figures that only this job can have; the next ones may be better
        draft.note("a profile that makes no sense", iteration=profile.iteration, error=repr(error))
        return
    # A scheduler that takes over need not wait for the next one.
    draft.keep = draft.known.workload is None and known.workload is not None
    draft.known = known
    draft.save += accounts
    if measured is not None:
        _measured(draft, measured)
    if known.workload is not None and Timer.PROFILE in draft.job.timers:
        draft.job = replace(draft.job, timers=draft.job.timers - {Timer.PROFILE})
        planning.react(draft)


def _measured(draft: Draft, measured: Measured) -> None:
    """Of the plan in force: what it did, beside what was predicted."""
    record = measured.plan.record
    levers = [action.lever for action in record.actions]
    hindsight = draft.known.hindsight.after(record.predicted_seconds, measured.seconds, levers)
    draft.known = replace(draft.known, hindsight=hindsight)
    draft.enter(record, PlanState.MEASURED, measured_seconds=measured.seconds)


def _answered(draft: Draft, event: events.Answered) -> None:
    if event.why is Timer.STANDSTILL:
        if evidence.all_alive(draft, event.answers):
            draft.job = replace(draft.job, must_recover=True)
            planning.react(draft)
        draft.set_timer(Timer.STANDSTILL, draft.moment.rules.standstill_seconds)
    elif event.why is Timer.POSSIBLE:
        if flights.is_possible(draft, event.answers):
            planning.react(draft)
    elif event.why is Timer.ENDED:
        if evidence.nobody_there(draft, event.answers):
            draft.then.append(EndJob())
    elif not isinstance(event.why, Timer):
        verdict = evidence.verdict_on(draft, event.why, event.answers)
        if verdict is not None:
            take_verdicts(draft, [verdict])


def _timer_fired(draft: Draft, event: events.TimerFired) -> None:
    if event.key not in draft.job.timers:
        return
    draft.job = replace(draft.job, timers=draft.job.timers - {event.key})
    if event.key is Timer.START:
        deadline_seconds = draft.moment.rules.start_deadline_seconds
        draft.known = not_started(draft.known, draft.moment.at, deadline_seconds=deadline_seconds)
    elif event.key is Timer.POSSIBLE:
        flights.look_for_what_is_missing(draft)
    elif isinstance(event.key, Timer) and event.key not in (Timer.STANDSTILL, Timer.ENDED):
        planning.waited(draft, event.key)
    else:
        evidence.waited(draft, event.key)


def _finish(draft: Draft, failure: str) -> None:
    """The job has ended, perhaps because it failed; its plans, streams and watchers end too."""
    at = draft.moment.at
    flights.ground(draft, "the job finished")
    known = with_standstill(draft.known, at) if draft.known.need is PlanNeed.RECOVER else draft.known
    draft.save += [one.resolved(at, "the job finished") for one in known.incidents]
    draft.save += flights.overtaken_ends(draft, "the job finished before every rank was seen to run it")
    detail = f"failed: {failure}" if failure else "finished"
    draft.save.append(JobStateRecord(job_id=known.job_id, state=JobState.FINISHED, at=at, detail=detail))
    draft.job = replace(
        draft.job, known=replace(known, finished=True, incidents=()), said=JobState.FINISHED, question=None
    )


def _say_state(draft: Draft) -> None:
    """The job's state, if it is another one than was last said: durable with what has led to it."""
    known = draft.known
    if known.state is draft.job.said:
        return
    detail = f"ranks {list(known.lost)} are gone" if known.state is JobState.DEGRADED else ""
    if known.stuck and known.state is JobState.STUCK:
        detail = known.stuck.detail
    draft.save.append(JobStateRecord(job_id=known.job_id, state=known.state, at=draft.moment.at, detail=detail))
    draft.job = replace(draft.job, said=known.state)
