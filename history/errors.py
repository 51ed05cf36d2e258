"""What can go wrong with the history, apart from the database being away."""

from collections.abc import Collection


class HistoryError(Exception):
    """Root of the history's errors."""


class JobConflictError(HistoryError):
    """The job id is taken by a job with another model, layout or token."""

    def __init__(self, job_id: str, difference: str) -> None:
        super().__init__(f"job {job_id!r} exists with another {difference}; choose another job id")


class JobIdUsedError(JobConflictError):
    """The job id is taken by a job that has ended: its history is closed."""

    def __init__(self, job_id: str) -> None:
        HistoryError.__init__(self, f"job {job_id!r} has finished and stays in the history; choose another job id")


class UnknownJobError(HistoryError):
    """No job has this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}; register it, or list the jobs to find its id")


class UnknownRankError(HistoryError):
    """The job has no such rank."""

    def __init__(self, job_id: str, rank: int, ranks: Collection[int]) -> None:
        super().__init__(
            f"job {job_id!r} has no rank {rank}: it was registered with {len(ranks)}, {min(ranks)} to {max(ranks)}; "
            "start it with these, or register a job with more under another id"
        )


class FinishedJobError(HistoryError):
    """The job has ended, and nothing of it begins any more."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} has finished; register another one under a new id")


class UnknownPlanError(HistoryError):
    """No plan has this id."""

    def __init__(self, plan_id: str) -> None:
        super().__init__(f"no plan {plan_id!r}; list the plans to find one")


class StaleStateError(HistoryError):
    """Somebody else has saved how the job stands: whoever knows an earlier state may write nothing of it."""

    def __init__(self, job_id: str, version: int) -> None:
        super().__init__(f"job {job_id!r} was saved by somebody else: version {version} does not follow what is there")


class DeposedError(HistoryError):
    """Somebody else is in charge: whoever was may write nothing any more."""

    def __init__(self, name: str, term: int) -> None:
        super().__init__(f"{name} of term {term} is not in charge any more: another one has taken over")


class UnknownIncidentError(HistoryError):
    """No incident has this id."""

    def __init__(self, incident_id: str) -> None:
        super().__init__(f"no incident {incident_id!r}")


class MigrationError(HistoryError):
    """The schema cannot be brought to the newest migration."""
