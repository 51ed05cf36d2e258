"""One job as the machine has it: what is known of it, and what is under way for it. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed

Process = tuple[int, int]
"""A process of a rank: (rank, incarnation)."""


class Timer(StrEnum):
    """What a job waits for; each at most once at a time."""

    AGAIN = "again"
    """A plan failed: look at what the state asks for."""

    POSSIBLE = "possible"
    """A plan failed because some slice is nowhere: look whether that has turned up."""

    REGISTRATIONS = "registrations"
    PROFILE = "profile"
    SECOND_LOOK = "second_look"
    STANDSTILL = "standstill"
    ENDED = "ended"
    START = "start"
    VERDICT = "verdict"
    """Processes are away of which the detector says nothing: look whether they are gone."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A process whose stream broke: how, and until when a verdict on it is waited for."""

    detail: str
    until: datetime


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What the planner is asked: what the state needs, and the state; the answer to an earlier one is dropped."""

    need: PlanNeed
    known: JobKnowledge

    def is_about(self, known: JobKnowledge) -> bool:
        """Whether its answer is good for this state too."""
        return _asked_of(known) == _asked_of(self.known)


def _asked_of(known: JobKnowledge) -> tuple[object, ...]:
    return known.epoch, known.layout, known.usable, known.vacant, known.links


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        known: What is known of it.
        salt: A word of whoever goes on with it now: no other names a plan like this.
        must_recover: Some rank waits for a recovery, though nobody is gone.
        question: What the planner is asked.
        timers: Those that run.
        suspects: Processes whose streams broke.
        heard_at: When a process registered last, a profile came or a stream broke.
        iteration_seconds: As of the newest profile.
        seen_to_end: The detector's newest word is that all processes of the job have ended.
        num_failures: Plans that failed since one was last applied.
        num_second_looks: Of the same state.
        waited: What was waited for long enough, once and for all: ranks that have not registered, a profile.
        advised: Id of the advice that was given last.
        awaited: The plan that failed last because some slice is nowhere.
    """

    known: JobKnowledge
    salt: str
    must_recover: bool = False
    question: Question | None = None
    timers: frozenset[Timer] = frozenset()
    suspects: Mapping[Process, Suspect] = field(default_factory=dict)
    heard_at: datetime | None = None
    iteration_seconds: float = 0.0
    seen_to_end: bool = False
    num_failures: int = 0
    num_second_looks: int = 0
    waited: frozenset[Timer] = frozenset()
    advised: str = ""
    awaited: PlanRecord | None = None

    @property
    def awaits(self) -> PlanNeed:
        """The plan that it waits for: a recovery, be it only asked for; one that flies; or that of a newcomer."""
        known, flight = self.known, self.known.flight
        if known.lost or self.must_recover or (flight is not None and flight.record.mode is PlanMode.RECOVER):
            return PlanNeed.RECOVER
        return PlanNeed.BOUNDARY if flight is not None or known.newcomers else PlanNeed.NONE
