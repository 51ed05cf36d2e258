"""What can be added to the history of a job."""

from dataclasses import dataclass
from datetime import datetime

from evenkeel.history.records import (
    IncidentEventRecord,
    IncidentRecord,
    JobRecord,
    PlanEventRecord,
    PlanRecord,
    RankExitRecord,
    RankRecord,
    VerdictRecord,
    WorkingStateRecord,
)
from evenkeel.history.vocabulary import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStateRecord:
    """A job enters a state."""

    job_id: str
    state: JobState
    at: datetime
    detail: str = ""


JobChange = (
    JobRecord
    | RankRecord
    | RankExitRecord
    | JobStateRecord
    | VerdictRecord
    | IncidentRecord
    | IncidentEventRecord
    | PlanRecord
    | PlanEventRecord
    | WorkingStateRecord
)
