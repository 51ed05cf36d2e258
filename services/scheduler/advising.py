"""Advice on a job that nobody can reshape: recorded beside its incident, and with it the plan that would pay."""

from dataclasses import replace

import structlog

from evenkeel.history.records import IncidentEventRecord
from evenkeel.history.vocabulary import IncidentEventKind, PlanMode
from evenkeel.planning.solution import NoPlanError
from evenkeel.services.scheduler.departures import Answer, new_flight, solved, weigh
from evenkeel.services.scheduler.domain.advice import advice_on
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.parts import Parts
from evenkeel.services.scheduler.plan_log import PlanLog
from evenkeel.services.scheduler.plan_records import plan_record
from evenkeel.services.scheduler.plans.decision import Choice

_log = structlog.get_logger(__name__)


async def advise(job: JobKnowledge, likely: Answer | None, parts: Parts, log: PlanLog) -> None:
    """Tell people what can be done about a job's state; durable on return, the same state again adds nothing.

    Args:
        job: The job.
        likely: The planner's answer for it, on its way already.
        parts: What all jobs share.
        log: Where its plans are recorded.
    """
    advice = advice_on(job, job.situation(parts.transition), parts.rule.min_gain)
    if advice is None:
        return
    _log.warning("the job cannot be reshaped", job_id=job.job_id, incident_id=advice.incident_id, advice=advice.text)
    at = parts.now()
    note = IncidentEventRecord(
        incident_id=advice.incident_id,
        kind=IncidentEventKind.NOTE,
        reference=advice.advice_id,
        at=at,
        detail=advice.text,
    )
    solution, solve_seconds = await (likely or solved(job, parts))
    if isinstance(solution, NoPlanError):
        await parts.store.save_patiently([note])
        return
    mode = PlanMode.RECOVER if job.lost else PlanMode.BOUNDARY
    decision = weigh(job, solution, mode, parts)
    parts.metrics.decisions.labels(decision.choice.value).inc()
    if decision.choice is Choice.KEEP:
        await parts.store.save_patiently([replace(note, detail=f"{advice.text} {decision.reason}")])
        return
    flight = replace(new_flight(job, solution, mode, parts), plan_id=advice.advice_id, incident_id=advice.incident_id)
    record = plan_record(job, flight, solution, why=decision.reason, solve_seconds=solve_seconds, at=at)
    await log.advised(record, advice.text, note)
