"""A job's plans: asked for by its state, weighed, taken to the ranks, and what becomes of them."""

from dataclasses import replace

from evenkeel.history.vocabulary import PlanMode, PlanState
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.services.scheduler.dispatch.protocol import StaleBallotError
from evenkeel.services.scheduler.domain.advice import advice_on
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed
from evenkeel.services.scheduler.domain.replacements import promoted
from evenkeel.services.scheduler.domain.stuck import StuckReason
from evenkeel.services.scheduler.jobs import flights
from evenkeel.services.scheduler.jobs.events import Agreed, Applied, Event, Failed, Solved
from evenkeel.services.scheduler.jobs.job import Question, Timer
from evenkeel.services.scheduler.jobs.steps import Step, Weighed
from evenkeel.services.scheduler.plans.decision import Choice, weigh
from evenkeel.services.scheduler.plans.records import plan_record

_LONGEST_SECOND_LOOK_SECONDS = 600.0
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 5.0
_MOST_NAMED = 8


def react(step: Step) -> None:
    """Ask for what the state needs; take back a plan that counts on somebody who is gone."""
    need, flight = _need(step), step.known.flight
    if need is PlanNeed.RECOVER:
        mode, there = _mode(step.known, need), step.known.living.keys()
        if flight is None or flight.record.mode is not mode or not flight.participants <= there:
            flights.ground(step, "somebody it counts on is gone")
            _ask(step, need)
    elif need is not PlanNeed.NONE and not _awaits_profile(step):
        _ask(step, need)


def on_run(step: Step, event: Event) -> None:
    """Something happened to a plan; what is not about the plan that is under way now changes nothing."""
    flight = step.known.flight
    if isinstance(event, Solved):
        _solved(step, event)
    elif isinstance(event, Agreed | Applied | Failed) and flight and flight.record.plan_id == event.plan_id:
        if isinstance(event, Agreed):
            flights.agreed(step, flight, event.decision)
        elif isinstance(event, Applied):
            flights.applied(step, flight, event.first_iteration)
            react(step)
        else:
            flights.failed(step, flight, event.error)
            _after_failure(step, event.error)


def waited(step: Step, timer: Timer) -> None:
    """The time for another look at what the state asks for has come."""
    if step.known.flight is not None:
        return
    if timer in (Timer.REGISTRATIONS, Timer.PROFILE):
        step.job = replace(step.job, waited=step.job.waited | {timer})
    elif timer is Timer.SECOND_LOOK:
        step.known = replace(step.known, changed=True)
        if step.known.stuck:
            return  # until it is stuck no more
    react(step)


def _need(step: Step) -> PlanNeed:
    return PlanNeed.RECOVER if step.job.must_recover and step.known.can_reshape else step.known.need


def _mode(known: JobKnowledge, need: PlanNeed) -> PlanMode:
    # Whole replicas wait for nobody: they are told at the end of a step how the work is shared out now.
    return PlanMode.RECOVER if need is PlanNeed.RECOVER and not known.home.whole else PlanMode.BOUNDARY


def _awaits_profile(step: Step) -> bool:
    """Whether to wait, and not for ever: a detector that is away has no profile to tell."""
    if step.known.workload is not None or Timer.PROFILE in step.job.waited:
        return False
    step.note("the job's profile is not known yet: no plan yet")
    step.set_timer(Timer.PROFILE, step.moment.rules.profile_seconds)
    return True


def _ask(step: Step, need: PlanNeed) -> None:
    """Ask the planner, unless it is asked the same already."""
    known, rules = step.known, step.moment.rules
    may_wait = need is PlanNeed.BOUNDARY or Timer.REGISTRATIONS not in step.job.waited
    if known.unregistered and need is not PlanNeed.ADVICE and may_wait:
        step.note("some ranks have not registered yet: no plan", ranks=list(known.unregistered[:_MOST_NAMED]))
        if need is PlanNeed.RECOVER:
            step.set_timer(Timer.REGISTRATIONS, rules.registration_seconds)
        return
    step.known = known = replace(known, changed=False)
    if need is not PlanNeed.ADVICE and _is_ending(step):
        step.note("the job is ending: no plan")
        return
    asked = step.job.question
    if asked is not None and asked.need is need and asked.is_about(known):
        return
    question = Question(need, known)
    step.job = replace(step.job, question=question)
    step.meanwhile.append(question)


def _is_ending(step: Step) -> bool:
    infos = (step.known.ranks[rank] for rank in step.known.layout.ranks)
    return any(info.alive and step.moment.is_done(info.process) for info in infos)


def _solved(step: Step, event: Solved) -> None:
    question = event.question
    if question is not step.job.question:
        return
    step.job = replace(step.job, question=None)
    if not question.is_about(step.known):
        # Not what was asked about any more: whatever the state asks for now.
        step.known = replace(step.known, changed=True)
        react(step)
    elif question.need is PlanNeed.ADVICE:
        _advise(step, event)
    elif isinstance(event.answer, NoPlanError):
        step.note("no plan", problem=str(event.answer))
        flights.get_stuck(step, StuckReason.NO_LAYOUT, str(event.answer))
        _take_newcomers(step)
        if event.is_makeshift:
            step.set_timer(Timer.AGAIN, _LONGEST_RETRY_SECONDS)
    else:
        _weigh(step, event.answer, _mode(step.known, question.need), event.seconds)
        if event.is_makeshift and step.known.flight is not None:
            # Once it is applied the planner is asked what would be better.
            step.known = replace(step.known, changed=True)


def _weigh(step: Step, solution: Solution, mode: PlanMode, solve_seconds: float) -> None:
    known, rules, at = step.known, step.moment.rules, step.moment.at
    decision = weigh(known, solution, mode, rules.rule, at.timestamp())
    step.then.append(Weighed(decision.choice.value, solve_seconds, decision.reason))
    if decision.choice is Choice.KEEP:
        if Timer.SECOND_LOOK not in step.job.timers:
            seconds = rules.second_look_seconds * 2.0 ** min(step.job.num_second_looks, 60)
            step.set_timer(Timer.SECOND_LOOK, min(seconds, _LONGEST_SECOND_LOOK_SECONDS))
            step.job = replace(step.job, num_second_looks=step.job.num_second_looks + 1)
        return
    name = f"{known.job_id}-{known.top_epoch + 1}-{step.job.salt}"
    record = plan_record(known, solution, mode, (name, known.cause), decision.reason, solve_seconds, at)
    flights.take_off(step, record)


def _advise(step: Step, event: Solved) -> None:
    """Tell people what can be done about a job that nobody can reshape; the same state again adds nothing."""
    known, at, rules = step.known, step.moment.at, step.moment.rules
    advice = advice_on(known, known.situation(rules.transition), rules.rule.min_gain)
    if advice is None or advice.advice_id == step.job.advised:
        return
    step.note("the job cannot be reshaped", incident_id=advice.incident_id, advice=advice.text)
    detail, ids = advice.text, (advice.advice_id, advice.incident_id)
    if not isinstance(event.answer, NoPlanError):
        mode = PlanMode.RECOVER if known.lost else PlanMode.BOUNDARY
        decision = weigh(known, event.answer, mode, rules.rule, at.timestamp())
        step.then.append(Weighed(decision.choice.value, event.seconds, decision.reason))
        if decision.choice is Choice.KEEP:
            detail = f"{advice.text} {decision.reason}"
        else:
            record = plan_record(known, event.answer, mode, ids, decision.reason, event.seconds, at)
            step.job = replace(step.job, advised=advice.advice_id)
            step.save.append(record)
            step.enter(record, PlanState.ADVISED, detail=advice.text)
    step.note_on(advice.incident_id, advice.advice_id, detail)


def _take_newcomers(step: Step) -> None:
    """Nothing can be made of those that are left: whoever waits to replace one of the dead is counted in."""
    newcomers = step.known.newcomers
    step.known = promoted(step.known)
    if step.known.newcomers != newcomers:  # also in places that the layout in force does without
        react(step)


def _after_failure(step: Step, error: Exception) -> None:
    """Count those in who wait, where nothing can be made of the others; else look again a little later."""
    if step.known.stuck:
        _take_newcomers(step)
    if step.known.stuck:
        return
    # Beyond a promise that was told it is answered: nothing to wait for.
    at_once, num_failures = isinstance(error, StaleBallotError), step.job.num_failures
    # Each try is in the history for ever, and what nobody stands still for can wait.
    longest = _LONGEST_RETRY_SECONDS if _need(step) is PlanNeed.RECOVER else _LONGEST_SECOND_LOOK_SECONDS
    pause = min(_FIRST_RETRY_SECONDS * 2.0 ** min(num_failures, 60), longest)
    step.set_timer(Timer.AGAIN, 0.0 if at_once else pause)
    step.job = replace(step.job, num_failures=num_failures + (not at_once))
