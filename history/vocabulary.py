"""Closed sets of words that are stored as text; the same words as in ``protos/``, in lower case without the prefix."""

from enum import StrEnum


class JobState(StrEnum):
    """State of a job."""

    RUNNING = "running"
    RESHAPING = "reshaping"
    STUCK = "stuck"
    DEGRADED = "degraded"
    FINISHED = "finished"


class VerdictKind(StrEnum):
    """What the detector found."""

    FAIL_STOP = "fail_stop"
    HANG = "hang"
    COMPUTE_SLOW = "compute_slow"
    COMMUNICATION_SLOW = "communication_slow"
    STAGE_IMBALANCE = "stage_imbalance"
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    JITTER = "jitter"
    NOT_FINITE = "not_finite"
    SPIKE = "spike"
    SUSPECTED_CORRUPTION = "suspected_corruption"
    RECOVERED = "recovered"
    REJOINED = "rejoined"
    COMMUNICATION_RECOVERED = "communication_recovered"
    INPUT_STALL = "input_stall"
    PERIODIC_PAUSE = "periodic_pause"
    PROGRAM_ERROR = "program_error"


class IncidentEventKind(StrEnum):
    """What happened to an incident after it was opened."""

    VERDICT = "verdict"
    """One more verdict about it; the reference is the verdict's id."""

    PLAN = "plan"
    """A plan was made for it; the reference is the plan's id."""

    LOSS = "loss"
    """A newer account of the time lost; the reference is the iteration it reaches to."""

    NOTE = "note"
    """Something that a person should know; the reference is the plan's or the advice's id."""

    CAUSE = "cause"
    """It is of another kind than it looked at first; the reference is that kind."""

    RESOLVED = "resolved"
    """It is over; at most once, the reference is empty."""


class PlanMode(StrEnum):
    """How a plan is applied."""

    BOUNDARY = "boundary"
    RECOVER = "recover"


class PlanState(StrEnum):
    """State of a plan."""

    PROPOSED = "proposed"
    COMMITTED = "committed"
    APPLIED = "applied"
    MEASURED = "measured"
    ABORTED = "aborted"
    ADVISED = "advised"
