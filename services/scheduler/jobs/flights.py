"""A job's plan on its way to the ranks: it takes off, is decided, applied or taken back, and each is told once."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from evenkeel.history.records import PlanRecord, PlanStatus
from evenkeel.history.vocabulary import PlanMode, PlanState
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.scheduler.dispatch.agreement import (
    NoAgreementError,
    NothingLeftError,
    RecoveryNeededError,
    decision_on,
)
from evenkeel.services.scheduler.dispatch.protocol import Decision, StaleBallotError
from evenkeel.services.scheduler.domain.parts import PlanInFlight
from evenkeel.services.scheduler.domain.replacements import promoted
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason
from evenkeel.services.scheduler.domain.transitions import on_applied
from evenkeel.services.scheduler.jobs.events import Silence
from evenkeel.services.scheduler.jobs.job import Process, Timer
from evenkeel.services.scheduler.jobs.steps import Ask, Step
from evenkeel.services.scheduler.plans.records import decision_to_document

_STATUS_SECONDS = 1.0
_SHORTEST_LOOK_SECONDS = 0.5
_LONGEST_LOOK_SECONDS = 5.0


def take_off(step: Step, plan: PlanRecord) -> None:
    """A plan goes on its way to the ranks."""
    known = step.known
    concerned = {*known.layout.ranks, *plan.layout.ranks}
    counted = [one for one in known.ranks.values() if one.alive and one.address and one.rank in concerned]
    participants = frozenset(one.process for one in counted)
    flight = PlanInFlight(record=plan, participants=participants)
    known = replace(known, flight=flight, top_epoch=plan.epoch, stuck=None)
    step.job = replace(step.job, known=known, must_recover=False)
    step.save.append(plan)
    step.then.append(PlanStatus(plan=plan, state=PlanState.PROPOSED, at=plan.proposed_at))


def ground(step: Step, why: str) -> None:
    """The plan on its way, if any, flies no more; what ranks have taken up of a decided one, the next one reads."""
    flight = step.known.flight
    if flight is not None:
        # Ranks may have parked for a recovery, or be in a decided plan's epoch, though nobody is gone any more.
        waits = step.job.must_recover or flight.record.mode is PlanMode.RECOVER or flight.decision is not None
        # Nobody counts any more on the earlier processes of ranks that only this plan would have used.
        step.job = replace(step.job, known=promoted(replace(step.known, flight=None)), must_recover=waits)
        step.enter(flight.record, PlanState.ABORTED, detail=why)


def agreed(step: Step, flight: PlanInFlight, decision: Decision) -> None:
    """The ranks' answers allow it: decided, once that is durable."""
    plan, known = flight.record, step.known
    step.enter(plan, PlanState.COMMITTED, decision=decision_to_document(decision))
    layouts = {**known.layouts, plan.epoch: plan.layout}
    step.known = replace(known, layouts=layouts, flight=replace(flight, decision=decision))


def applied(step: Step, flight: PlanInFlight, first_iteration: int) -> None:
    """Every rank of its layout runs it."""
    plan = flight.record
    outcome = on_applied(step.known, first_iteration=first_iteration, at=step.moment.at)
    step.enter(plan, PlanState.APPLIED, first_iteration=first_iteration)
    step.save += outcome.records
    step.job = replace(step.job, known=outcome.job, num_failures=0, num_second_looks=0)


def failed(step: Step, flight: PlanInFlight, error: Exception) -> None:
    """It is off, or nobody gets any further with it: note it, and learn the ranks' epochs."""
    plan = flight.record
    step.note("plan failed", plan_id=plan.plan_id, error=str(error))
    heard = [state.newest_epoch for state in step.moment.states.values()]
    if isinstance(error, StaleBallotError):
        heard.append(error.promised.epoch)
    ground(step, str(error))
    step.known = replace(step.known, changed=True, top_epoch=max([step.known.top_epoch, *heard]))
    if isinstance(error, RecoveryNeededError):  # a boundary that some ranks wait for and others refuse never comes
        step.job = replace(step.job, must_recover=True)
    if isinstance(error, NothingLeftError):
        get_stuck(step, StuckReason.NOTHING_HELD, str(error))
        if plan.incident_id:
            step.note_on(plan.incident_id, plan.plan_id, f"the job cannot go on: {error}")
        step.job = replace(step.job, awaited=plan)
        look_for_what_is_missing(step)


def look_for_what_is_missing(step: Step) -> None:
    """Some slice is nowhere: parked ranks wait, and so does the job, until a copy or a checkpoint turns up."""
    if step.known.stuck_by is StuckReason.NOTHING_HELD:
        step.then.append(Ask(Timer.POSSIBLE, _STATUS_SECONDS))


def is_possible(step: Step, answers: Mapping[Process, RankState | Silence]) -> bool:
    """Whether the ranks' states would allow the plan that failed; they are looked at again later where they do not."""
    known, plan, stuck = step.known, step.job.awaited, step.known.stuck
    if plan is None or stuck is None or stuck.reason is not StuckReason.NOTHING_HELD:
        return False
    counts = {info.process for info in known.ranks.values() if info.alive}
    states = {process[0]: one for process, one in answers.items() if isinstance(one, RankState) and process in counts}
    if states.keys() >= set(plan.layout.ranks):
        with suppress(NoAgreementError):
            decision_on(known, plan, states)
            step.known = replace(known, stuck=None)
            return True
    waited_seconds = (step.moment.at - stuck.since).total_seconds()
    step.set_timer(Timer.POSSIBLE, min(max(_SHORTEST_LOOK_SECONDS, waited_seconds), _LONGEST_LOOK_SECONDS))
    return False


def get_stuck(step: Step, reason: StuckReason, detail: str) -> None:
    """The job cannot go on; for the same reason as before, it has been so since then."""
    known = step.known.stuck
    if known is None or (known.reason, known.detail) != (reason, detail):
        step.known = replace(step.known, stuck=Stuck(reason=reason, detail=detail, since=step.moment.at))
