"""What can happen to a job; what the detector finds are events as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history.records import RankExitRecord, RankRecord, VerdictRecord
from evenkeel.layouts.rank_state import RankState
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.services.scheduler.dispatch.agreement import NoAgreementError
from evenkeel.services.scheduler.dispatch.protocol import Decision, RankAwayError, RankRefusedError
from evenkeel.services.scheduler.domain.profiles import JobEnded, JobProfile
from evenkeel.services.scheduler.jobs.job import Process, Question, Timer


@dataclass(frozen=True, slots=True)
class Began:
    """Somebody goes on with the job as it was left, or registered."""


@dataclass(frozen=True, slots=True)
class RanksRegistered:
    """Processes of ranks registered their controllers."""

    records: tuple[RankRecord, ...]


@dataclass(frozen=True, slots=True)
class ExitsReported:
    """Processes of ranks have ended, as who started them saw."""

    exits: tuple[RankExitRecord, ...]


@dataclass(frozen=True, slots=True)
class VerdictsTaken:
    """The detector's verdicts, in order."""

    verdicts: tuple[VerdictRecord, ...]


@dataclass(frozen=True, slots=True)
class Parked:
    """A rank waits for a recovery."""


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """A process's stream broke and its controller does not answer any more."""

    process: Process
    detail: str


class Silence(Enum):
    """Why a process gave no state when it was asked."""

    AWAY = "away"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answered:
    """Processes were asked for their states; those without a client are not among the answers."""

    why: Timer
    answers: Mapping[Process, RankState | Silence]


@dataclass(frozen=True, slots=True)
class TimerFired:
    """What was waited for may be over."""

    key: Timer


@dataclass(frozen=True, slots=True)
class Solved:
    """The planner's answer to a question, and the seconds that it took; makeshift: it had to be done without it."""

    question: Question
    answer: Solution | NoPlanError
    seconds: float
    is_makeshift: bool = False


@dataclass(frozen=True, slots=True)
class Agreed:
    """The ranks' answers allow a plan: this would be decided."""

    plan_id: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Applied:
    """Every rank of a plan's layout runs it."""

    plan_id: str
    first_iteration: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A plan did not get to all ranks, or one of them could not apply it."""

    plan_id: str
    error: NoAgreementError | RankAwayError | RankRefusedError


@dataclass(frozen=True, slots=True)
class Finish:
    """The job has ended; ``failure`` says why it failed, empty when it did not."""

    failure: str = ""


Event = (
    Began
    | RanksRegistered
    | ExitsReported
    | VerdictsTaken
    | JobProfile
    | JobEnded
    | Suspicion
    | Parked
    | StreamBroken
    | Answered
    | TimerFired
    | Solved
    | Agreed
    | Applied
    | Failed
    | Finish
)
"""Anything that can happen."""
