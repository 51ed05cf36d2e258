"""One job as the machine has it: what is known of it, and what is under way for it. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from evenkeel.history.records import PlanRecord
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed
from evenkeel.services.scheduler.domain.parts import RankInfo

Process = tuple[int, int]
"""A process of a rank: (rank, incarnation)."""


class Timer(StrEnum):
    """What a job waits for; each at most once at a time. A process instead of one of these: its verdict."""

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


TimerKey = Timer | Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the planner is asked just now.

    Attributes:
        number: Grows; the answer to an older one is dropped.
        need: What the answer is for.
        about: The part of the state that the answer is good for.
    """

    number: int
    need: PlanNeed
    about: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        known: What is known of it.
        salt: A word of whoever goes on with it now: no other names a plan like this.
        must_recover: Some rank waits for a recovery, though nobody is gone.
        question: What the planner is asked.
        num_questions: How often it was asked.
        timers: Those that run.
        suspects: Processes whose streams broke, and how: a verdict on them is waited for.
        seen_to_end: The detector's newest word is that all processes of the job have ended.
        num_failures: Plans that failed since one was last applied.
        num_second_looks: Of the same state.
        has_waited: For ranks that have not registered.
        goes_without_profile: It was waited for long enough.
        advised: Id of the advice that was given last.
        awaited: The plan that failed last because some slice is nowhere.
    """

    known: JobKnowledge
    salt: str
    must_recover: bool = False
    question: Question | None = None
    num_questions: int = 0
    timers: frozenset[TimerKey] = frozenset()
    suspects: Mapping[Process, str] = field(default_factory=dict)
    seen_to_end: bool = False
    num_failures: int = 0
    num_second_looks: int = 0
    has_waited: bool = False
    goes_without_profile: bool = False
    advised: str = ""
    awaited: PlanRecord | None = None


def counted(known: JobKnowledge) -> dict[Process, RankInfo]:
    """Processes that live, as far as is known, or wait to take their ranks over."""
    infos = (*known.ranks.values(), *(newcomer.info for newcomer in known.newcomers.values()))
    return {info.process: info for info in infos if info.alive}
