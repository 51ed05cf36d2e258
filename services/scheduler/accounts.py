"""What incidents have cost so far, told to the history while they are open.

Without it an account would be there only once a plan was applied or the incident was over, and a scheduler that starts
again would have forgotten what a slow device had cost until then.
"""

from datetime import datetime

from history.records import IncidentEventRecord
from history.vocabulary import IncidentEventKind
from services.scheduler.domain.job_state import JobKnowledge

_LEAST_SECONDS = 1.0
# Each account is larger than the last one by a part of it: an incident that is open for weeks has some dozens of rows.
_GROWTH = 1.1


class LossAccounts:
    """Which accounts of one job's incidents are due. Event loop's thread."""

    def __init__(self) -> None:
        self._told_seconds: dict[str, float] = {}

    def due(self, job: JobKnowledge, at: datetime) -> list[IncidentEventRecord]:
        """Accounts of the open incidents that have cost a second, and a tenth more than when they were last told."""
        told = {one.incident_id: self._told_seconds.get(one.incident_id, 0.0) for one in job.incidents}
        grown = [
            one for one in job.incidents if one.lost_seconds >= max(_LEAST_SECONDS, told[one.incident_id] * _GROWTH)
        ]
        self._told_seconds = told | {one.incident_id: one.lost_seconds for one in grown}
        return [
            IncidentEventRecord(
                incident_id=one.incident_id,
                kind=IncidentEventKind.LOSS,
                reference=str(job.iteration),
                at=at,
                lost_seconds=one.lost_seconds,
            )
            for one in grown
        ]
