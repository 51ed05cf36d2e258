"""A job's plans: asked for by its state, weighed, taken to the ranks, and what becomes of them."""

from dataclasses import replace

from evenkeel.history.records import IncidentEventRecord
from evenkeel.history.vocabulary import IncidentEventKind, PlanMode, PlanState
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.services.scheduler.dispatch.protocol import StaleBallotError
from evenkeel.services.scheduler.domain.advice import Advice, advice_on
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed
from evenkeel.services.scheduler.domain.replacements import promoted
from evenkeel.services.scheduler.domain.stuck import StuckReason
from evenkeel.services.scheduler.jobs import flights
from evenkeel.services.scheduler.jobs.events import Agreed, Applied, Event, Failed, Solved
from evenkeel.services.scheduler.jobs.job import Question, Timer
from evenkeel.services.scheduler.jobs.steps import Draft, Solve, Weighed
from evenkeel.services.scheduler.plans.decision import Choice, weigh
from evenkeel.services.scheduler.plans.records import plan_record

_LONGEST_SECOND_LOOK_SECONDS = 600.0
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 5.0
_MOST_NAMED = 8


def react(draft: Draft) -> None:
    """Ask for what the state needs; take back a plan that counts on somebody who is gone."""
    need, flight = _need(draft), draft.known.flight
    if need is PlanNeed.RECOVER:
        is_made = flight is not None and flight.record.mode is _mode(draft.known, need)
        if not is_made or flight is None or not flight.is_intact(draft.known.ranks):
            flights.ground(draft, "somebody it counts on is gone")
            _ask(draft, need)
    elif need is not PlanNeed.NONE and _awaits_profile(draft):
        draft.note("the job's profile is not known yet: no plan yet")
    elif need is not PlanNeed.NONE:
        _ask(draft, need)


def on_run(draft: Draft, event: Event) -> None:
    """Something happened to a plan; what is not about the plan that is under way now changes nothing."""
    flight = draft.known.flight
    if isinstance(event, Solved):
        _solved(draft, event)
    elif isinstance(event, Agreed | Applied | Failed) and flight and flight.record.plan_id == event.plan_id:
        if isinstance(event, Agreed):
            flights.agreed(draft, flight, event.decision)
        elif isinstance(event, Applied):
            flights.applied(draft, flight, event.first_iteration)
            react(draft)
        else:
            flights.failed(draft, flight, event.error)
            _after_failure(draft, event.error)


def waited(draft: Draft, timer: Timer) -> None:
    """The time for another look at what the state asks for has come."""
    if draft.known.flight is not None:
        return
    if timer is Timer.REGISTRATIONS:
        draft.job = replace(draft.job, has_waited=True)
    elif timer is Timer.PROFILE:
        draft.job = replace(draft.job, goes_without_profile=True)
    elif timer is Timer.SECOND_LOOK:
        if draft.known.stuck:
            return
        draft.known = replace(draft.known, changed=True)
    react(draft)


def _need(draft: Draft) -> PlanNeed:
    return PlanNeed.RECOVER if draft.job.must_recover and draft.known.can_reshape else draft.known.need


def _mode(known: JobKnowledge, need: PlanNeed) -> PlanMode:
    # Whole replicas wait for nobody: they are told at the end of a step how the work is shared out now.
    return PlanMode.RECOVER if need is PlanNeed.RECOVER and not known.home.whole else PlanMode.BOUNDARY


def _awaits_profile(draft: Draft) -> bool:
    """Whether to wait, and not for ever: a detector that is away has no profile to tell."""
    if draft.known.workload is not None or draft.job.goes_without_profile:
        return False
    draft.set_timer(Timer.PROFILE, draft.moment.rules.profile_seconds)
    return True


def _ask(draft: Draft, need: PlanNeed) -> None:
    """Ask the planner, unless it is asked the same already."""
    known, rules = draft.known, draft.moment.rules
    if known.unregistered and (need is PlanNeed.BOUNDARY or (need is PlanNeed.RECOVER and not draft.job.has_waited)):
        ranks = list(known.unregistered[:_MOST_NAMED])
        draft.note("some ranks have not registered their controllers: no plan yet", ranks=ranks)
        if need is PlanNeed.RECOVER:
            draft.set_timer(Timer.REGISTRATIONS, rules.registration_seconds)
        return
    draft.known = known = replace(known, changed=False)
    if need is PlanNeed.ADVICE:
        if _advice(draft) is None:
            return
    elif _is_ending(draft):
        draft.note("the job is ending: no plan")
        return
    about, asked = _about(known, need), draft.job.question
    if asked is not None and asked.about == about:
        return
    number = draft.job.num_questions + 1
    draft.job = replace(draft.job, question=Question(number=number, need=need, about=about), num_questions=number)
    draft.meanwhile.append(Solve(number, known, need is PlanNeed.RECOVER))


def _about(known: JobKnowledge, need: PlanNeed) -> tuple[object, ...]:
    return need, known.epoch, known.layout, tuple(known.usable.items()), known.vacant, known.links


def _is_ending(draft: Draft) -> bool:
    alive = [info for rank in draft.known.layout.ranks if (info := draft.known.ranks[rank]).alive]
    said = [(info, draft.moment.states.get(info.rank)) for info in alive]
    return any(
        state is not None and state.incarnation == info.incarnation and state.phase is RankPhase.FINISHED
        for info, state in said
    )


def _advice(draft: Draft) -> Advice | None:
    rules = draft.moment.rules
    return advice_on(draft.known, draft.known.situation(rules.transition), rules.rule.min_gain)


def _solved(draft: Draft, event: Solved) -> None:
    question = draft.job.question
    if question is None or question.number != event.number:
        return
    draft.job = replace(draft.job, question=None)
    if _about(draft.known, question.need) != question.about:
        # Not what was asked about any more: whatever the state asks for now.
        draft.known = replace(draft.known, changed=True)
        react(draft)
    elif question.need is PlanNeed.ADVICE:
        _advise(draft, event)
    elif isinstance(event.answer, NoPlanError):
        draft.note("no plan", problem=str(event.answer))
        flights.get_stuck(draft, StuckReason.NO_LAYOUT, str(event.answer))
        _take_newcomers(draft)
        if event.is_makeshift:
            draft.set_timer(Timer.AGAIN, _LONGEST_RETRY_SECONDS)
    else:
        _weigh(draft, event.answer, _mode(draft.known, question.need), event.seconds)
        if event.is_makeshift and draft.known.flight is not None:
            # Once it is applied the planner is asked what would be better.
            draft.known = replace(draft.known, changed=True)


def _weigh(draft: Draft, solution: Solution, mode: PlanMode, solve_seconds: float) -> None:
    known, rules, at = draft.known, draft.moment.rules, draft.moment.at
    decision = weigh(known, solution, mode, rules.rule, at.timestamp())
    draft.then.append(Weighed(decision.choice.value, solve_seconds, decision.reason))
    if decision.choice is Choice.KEEP:
        at_home = known.layout.replicas == known.home.replicas
        if (
            not (at_home and known.situation(rules.transition).all_is_well)
            and Timer.SECOND_LOOK not in draft.job.timers
        ):
            seconds = rules.second_look_seconds * 2.0 ** min(draft.job.num_second_looks, 60)
            draft.set_timer(Timer.SECOND_LOOK, min(seconds, _LONGEST_SECOND_LOOK_SECONDS))
            draft.job = replace(draft.job, num_second_looks=draft.job.num_second_looks + 1)
        return
    name = f"{known.job_id}-{known.top_epoch + 1}-{draft.job.salt}"
    record = plan_record(known, solution, mode, (name, known.cause), decision.reason, solve_seconds, at)
    flights.take_off(draft, record)


def _advise(draft: Draft, event: Solved) -> None:
    """Tell people what can be done about a job that nobody can reshape; the same state again adds nothing."""
    known, at, advice = draft.known, draft.moment.at, _advice(draft)
    if advice is None:
        return
    draft.note("the job cannot be reshaped", incident_id=advice.incident_id, advice=advice.text)
    note = IncidentEventRecord(
        incident_id=advice.incident_id,
        kind=IncidentEventKind.NOTE,
        reference=advice.advice_id,
        at=at,
        detail=advice.text,
    )
    if isinstance(event.answer, NoPlanError):
        draft.save.append(note)
        return
    mode = PlanMode.RECOVER if known.lost else PlanMode.BOUNDARY
    decision = weigh(known, event.answer, mode, draft.moment.rules.rule, at.timestamp())
    draft.then.append(Weighed(decision.choice.value, event.seconds, decision.reason))
    if decision.choice is Choice.KEEP:
        draft.save.append(replace(note, detail=f"{advice.text} {decision.reason}"))
        return
    ids = advice.advice_id, advice.incident_id
    record = plan_record(known, event.answer, mode, ids, decision.reason, event.seconds, at)
    is_new, num_told = draft.job.advised != advice.advice_id, len(draft.then)
    draft.job = replace(draft.job, advised=advice.advice_id)
    draft.save.append(record)
    draft.enter(record, PlanState.ADVISED, detail=advice.text)
    draft.save.append(note)
    if not is_new:
        del draft.then[num_told:]


def _take_newcomers(draft: Draft) -> None:
    """Nothing can be made of those that are left: whoever waits to replace one of the dead is counted in."""
    vacant = draft.known.vacant
    draft.known = promoted(draft.known)
    if draft.known.vacant != vacant:
        react(draft)


def _after_failure(draft: Draft, error: Exception) -> None:
    """Count those in who wait, where nothing can be made of the others; else look again a little later."""
    if draft.known.stuck:
        _take_newcomers(draft)
    if draft.known.stuck:
        return
    # Beyond a promise that was told it is answered: nothing to wait for.
    at_once, num_failures = isinstance(error, StaleBallotError), draft.job.num_failures
    pause = min(_FIRST_RETRY_SECONDS * 2.0 ** min(num_failures, 60), _LONGEST_RETRY_SECONDS)
    draft.set_timer(Timer.AGAIN, 0.0 if at_once else pause)
    draft.job = replace(draft.job, num_failures=num_failures + (not at_once))
