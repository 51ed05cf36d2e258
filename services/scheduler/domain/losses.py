"""What incidents cost, in training seconds, and when the history is told. Pure.

Each second is charged once. A standstill is charged from the death or hang on until a plan is seen to run; what
iterations take longer than healthy ones, to all incidents that are open, in equal parts. The history gets accounts: how
much an incident has cost, all in all. Without them while it is open, a scheduler that starts again would have forgotten
what a slow device had cost until then.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from evenkeel.history.records import IncidentEventRecord
from evenkeel.history.vocabulary import IncidentEventKind
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import OpenIncident
from evenkeel.services.scheduler.domain.replacements import GONE

_LEAST_SECONDS = 1.0
# Each account is larger than the last one by a part of it: an incident that is open for weeks has some dozens of rows.
_GROWTH = 1.1


def with_loss(job: JobKnowledge, incident_id: str | None, seconds: float) -> JobKnowledge:
    """Training time lost, charged to one incident, or in equal parts to all that are open."""
    charged = [i for i in job.incidents if seconds > 0.0 and (incident_id is None or i.incident_id == incident_id)]
    for one in charged:
        job = job.with_incident(replace(one, lost_seconds=one.lost_seconds + seconds / len(charged)))
    return job


def with_standstill(job: JobKnowledge, at: datetime) -> JobKnowledge:
    """The job when it goes on, or ends, after somebody whom the layout in force counts on was gone.

    Each of the deaths and hangs since that layout was seen to run is charged until the next one, the last one until
    ``at``. Where there is none, a plan in flight had to be replaced: its incident is charged from its start on; and
    without one nothing is known, as of a death that was dated before that layout ran. Whole replicas stand still for
    nobody.
    """
    if job.home.whole:
        return job
    end = at.timestamp()
    gone = sorted(
        (one.opened_at.timestamp(), one.incident_id)
        for one in job.incidents
        if one.kind in GONE
        and one.opened_at.timestamp() > job.running_since_unix_seconds
        and not one.ranks.isdisjoint(job.layout.ranks)
    )
    if not gone:
        plan = None if job.flight is None else job.flight.record
        return job if plan is None else with_loss(job, plan.incident_id, end - plan.proposed_at.timestamp())
    for (begin, incident_id), (until, _) in zip(gone, [*gone[1:], (end, "")], strict=True):
        job = with_loss(job, incident_id, min(until, end) - begin)
    return job


def due_accounts(job: JobKnowledge, at: datetime) -> tuple[JobKnowledge, list[IncidentEventRecord]]:
    """Accounts of the open incidents that have cost a second, and a tenth more than the history knows."""
    grown = [i for i in job.incidents if i.lost_seconds >= max(_LEAST_SECONDS, i.told_seconds * _GROWTH)]
    return _told(job, grown, at, reference=str(job.iteration))


def all_accounts(job: JobKnowledge, at: datetime, *, reference: str) -> tuple[JobKnowledge, list[IncidentEventRecord]]:
    """Accounts of all open incidents that have cost more than the history knows; ``reference`` names the occasion."""
    return _told(job, [i for i in job.incidents if i.lost_seconds > i.told_seconds], at, reference=reference)


def _told(
    job: JobKnowledge, incidents: Collection[OpenIncident], at: datetime, *, reference: str
) -> tuple[JobKnowledge, list[IncidentEventRecord]]:
    records = [
        IncidentEventRecord(
            incident_id=one.incident_id,
            kind=IncidentEventKind.LOSS,
            reference=reference,
            at=at,
            lost_seconds=one.lost_seconds,
        )
        for one in incidents
    ]
    for one in incidents:
        job = job.with_incident(replace(one, told_seconds=one.lost_seconds))
    return job, records
