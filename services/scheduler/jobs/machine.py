"""One job as a pure machine: an event in, a step out.

Each event is taken after the one before it, and its step is durable before anything is done about it. Plans follow from
the state, never from an event: whatever is lost in a crash, a restart that rebuilds the state asks for the same again.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history.errors import FinishedJobError, UnknownRankError
from evenkeel.history.records import JobRecord, JobStateRecord, RankExitRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import JobState, PlanState, VerdictKind
from evenkeel.services.scheduler.domain.exits import not_started, on_exits
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed, new_job
from evenkeel.services.scheduler.domain.losses import due_accounts, with_standstill
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile, on_profile
from evenkeel.services.scheduler.domain.replacements import hanging, in_their_places, on_rank_registered
from evenkeel.services.scheduler.domain.stuck import StuckReason
from evenkeel.services.scheduler.domain.transitions import on_verdict
from evenkeel.services.scheduler.jobs import events, evidence, flights, planning
from evenkeel.services.scheduler.jobs.job import Job, Timer
from evenkeel.services.scheduler.jobs.steps import Evict, Moment, Step

_STALE_SUSPICION_SECONDS = 30.0


def registered_job(record: JobRecord, salt: str) -> Job:
    """A job that was registered just now; to be told that it :class:`~events.Began`."""
    return Job(known=new_job(record), salt=salt)


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
    step = Step(job=job, moment=moment)
    if job.known.finished:
        if isinstance(event, events.RanksRegistered):
            raise FinishedJobError(job.known.job_id)
        return step
    _take(step, event)
    if step.known.stuck_by is StuckReason.UNHEARD and not evidence.is_unheard(step):
        step.known = replace(step.known, stuck=None)
        planning.react(step)
    _say_state(step, job.known)
    return step


def _take(step: Step, event: events.Event) -> None:
    match event:
        case events.Began():
            _begin(step)
        case events.RanksRegistered():
            _register(step, event.records)
        case events.ExitsReported():
            _exit(step, event.exits)
        case events.VerdictsTaken():
            take_verdicts(step, event.verdicts)
        case JobProfile():
            _profile(step, event)
        case JobEnded():
            evidence.all_ended(step)
        case Suspicion():
            # One from before an outage is not worth a probe.
            if step.moment.at.timestamp() - event.at_unix_seconds < _STALE_SUSPICION_SECONDS:
                step.then.append(event)
        case events.Parked():
            step.set_timer(Timer.STANDSTILL, step.moment.rules.standstill_seconds)
        case events.StreamBroken():
            evidence.stream_broken(step, event)
        case events.Answered():
            _answered(step, event)
        case events.TimerFired():
            _timer_fired(step, event)
        case events.Finish():
            _finish(step, event.failure)
        case _:
            planning.on_run(step, event)


def _begin(step: Step) -> None:
    """Somebody goes on with the job: all that was under way and is not in its state begins anew."""
    known, rules, flight = step.known, step.moment.rules, step.known.flight
    left = known.registered_at.timestamp() + rules.start_deadline_seconds - step.moment.at.timestamp()
    step.set_timer(Timer.START, max(0.0, left))
    step.known = replace(not_started(known, step.moment.at), changed=True)
    if step.job.seen_to_end:
        step.set_timer(Timer.ENDED, rules.ended_seconds)
    step.then += [Evict(info) for info in hanging(known).values()]
    if flight is not None and flight.decision is None:
        flights.ground(step, "the scheduler began anew before it was decided")
    elif flight is not None:
        step.note("finishing a decided plan", plan_id=flight.record.plan_id, epoch=flight.record.epoch)
    planning.react(step)


def _register(step: Step, records: Sequence[RankRecord]) -> None:
    _require(step.known, records)
    step.job = replace(step.job, heard_at=step.moment.at)
    if any(one.incarnation > step.known.ranks[one.rank].incarnation for one in records):
        evidence.goes_on(step)
    known = reduce(on_rank_registered, records, step.known)
    step.known, over = in_their_places(known, step.moment.at)
    step.save += [*records, *over]
    planning.react(step)


def _exit(step: Step, exits: Sequence[RankExitRecord]) -> None:
    _require(step.known, exits)
    step.known, records, verdict = on_exits(step.known, exits, step.moment.at)
    step.save += [*exits, *records]
    take_verdicts(step, [] if verdict is None else [verdict])


def _require(known: JobKnowledge, named: Sequence[RankRecord | RankExitRecord]) -> None:
    for each in named:
        if each.rank not in known.ranks:
            raise UnknownRankError(known.job_id, each.rank, known.ranks)


def take_verdicts(step: Step, verdicts: Sequence[VerdictRecord]) -> None:
    """Verdicts of the job, in order, whoever they are from; those that were seen before change nothing."""
    before = step.known.living
    for verdict in verdicts:
        if verdict.verdict_id not in step.known.seen:
            step.then.append(verdict)
        outcome = on_verdict(step.known, verdict)
        step.known = outcome.job
        step.save += [verdict, *outcome.records]
    # Where nobody can be left behind, one that hangs may still go on, and the others with it.
    if step.known.can_reshape:
        hang = {culprit.process for one in verdicts if one.kind == VerdictKind.HANG for culprit in one.culprits}
        left = hang & (before.keys() - step.known.living.keys())
        step.then += [Evict(before[process]) for process in sorted(left)]
    planning.react(step)


def _profile(step: Step, profile: JobProfile) -> None:
    evidence.goes_on(step)
    step.job = replace(step.job, heard_at=step.moment.at, iteration_seconds=profile.iteration_seconds)
    plan = step.known.unmeasured
    try:
        known, measured_seconds = on_profile(step.known, profile)
        known, accounts = due_accounts(known, step.moment.at)
    except (ArithmeticError, ValueError) as error:  # figures that only this job can have; the next ones may be better
        step.note("a profile that makes no sense", iteration=profile.iteration, error=repr(error))
        return
    # A scheduler that takes over need not wait for the next one.
    step.keep = step.known.workload is None and known.workload is not None
    step.known = known
    step.save += accounts
    if plan is not None and measured_seconds is not None:
        step.enter(plan.record, PlanState.MEASURED, measured_seconds=measured_seconds)
    if known.workload is not None and Timer.PROFILE in step.job.timers:
        step.job = replace(step.job, timers=step.job.timers - {Timer.PROFILE})
        planning.react(step)


def _answered(step: Step, event: events.Answered) -> None:
    if event.why is Timer.STANDSTILL:
        if evidence.all_alive(step, event.answers):
            step.job = replace(step.job, must_recover=True)
            planning.react(step)
        step.set_timer(Timer.STANDSTILL, step.moment.rules.standstill_seconds)
    elif event.why is Timer.POSSIBLE:
        if flights.is_possible(step, event.answers):
            planning.react(step)
    elif event.why is Timer.ENDED:
        if evidence.nobody_there(step, event.answers):
            step.note("all processes of the job have ended: it is finished")
            _finish(step)
        else:  # who is late to leave may do so without a word
            step.set_timer(Timer.ENDED, step.moment.rules.ended_seconds)
    elif verdicts := evidence.verdicts_on(step, event.answers):
        take_verdicts(step, verdicts)


def _timer_fired(step: Step, event: events.TimerFired) -> None:
    if event.key not in step.job.timers:
        return
    step.job = replace(step.job, timers=step.job.timers - {event.key})
    if event.key is Timer.START:
        deadline_seconds = step.moment.rules.start_deadline_seconds
        step.known = not_started(step.known, step.moment.at, deadline_seconds=deadline_seconds)
    elif event.key is Timer.POSSIBLE:
        flights.look_for_what_is_missing(step)
    elif event.key in (Timer.STANDSTILL, Timer.ENDED, Timer.VERDICT):
        evidence.waited(step, event.key)
    else:
        planning.waited(step, event.key)


def _finish(step: Step, failure: str = "") -> None:
    """The job has ended, perhaps because it failed; its plans, streams and watchers end too."""
    at = step.moment.at
    flights.ground(step, "the job finished")
    known = with_standstill(step.known, at) if step.known.need is PlanNeed.RECOVER else step.known
    step.save += [one.resolved(at, "the job finished") for one in known.incidents]
    detail = f"failed: {failure}" if failure else "finished"
    step.save.append(JobStateRecord(job_id=known.job_id, state=JobState.FINISHED, at=at, detail=detail))
    step.job = replace(step.job, known=replace(known, finished=True, incidents=()), question=None)


def _say_state(step: Step, before: JobKnowledge) -> None:
    """The job's state, if it is another one now: durable with what has led to it."""
    known = step.known
    if known.state in (before.state, JobState.FINISHED):
        return
    detail = known.stuck.detail if known.stuck else ""
    if known.state is JobState.DEGRADED:
        detail = f"ranks {list(known.lost)} are gone"
    step.save.append(JobStateRecord(job_id=known.job_id, state=known.state, at=step.moment.at, detail=detail))
