"""What ends one job's work only, what ends the service, and what a caller is told meanwhile."""

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history.errors import DeposedError
from evenkeel.services.common.kafka.client import KafkaError
from evenkeel.services.common.postgres.database import is_told_by_database
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile
from evenkeel.services.scheduler.jobs import events

_WHERE: dict[type, str] = {
    events.Began: "begin",
    events.VerdictsTaken: "verdict",
    JobProfile: "profile",
    JobEnded: "end",
    Suspicion: "suspicion",
    events.RanksRegistered: "registration",
    events.ExitsReported: "registration",
    events.Finish: "finish",
}


class JobAwayError(Exception):
    """The job begins anew just now, here or where a scheduler takes over: the same may be tried again in a while."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} is taken up anew, by this scheduler or the one that takes over; try again")
        self.job_id = job_id


class JobFailedError(JobAwayError):
    """What the job was given made it fail, which was told; it begins anew, and what was done is in the history."""


def is_fault(error: Exception) -> bool:
    """Whether an error is one of a job's state or of our code; else it is all jobs': a dependency or our place is lost.

    Args:
        error: What some work for one job raised.
    """
    return not (is_told_by_database(error) or isinstance(error, KafkaError | DeposedError))


def where_of(event: events.Event) -> str:
    """At what a job has failed, in the metrics."""
    return _WHERE.get(type(event), "task")
