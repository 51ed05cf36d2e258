"""What a job does about an event: its new state, what the history learns, and what is to be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from evenkeel.contracts.suspicion import Suspicion
from evenkeel.history.records import (
    IncidentEventRecord,
    IncidentRecord,
    JobRecord,
    JobStateRecord,
    PlanEventRecord,
    PlanRecord,
    PlanStatus,
    RankExitRecord,
    RankRecord,
    VerdictRecord,
)
from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.history.vocabulary import IncidentEventKind, PlanState
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import RankInfo
from evenkeel.services.scheduler.jobs.job import Job, Process, Question, Timer
from evenkeel.services.scheduler.jobs.rules import Rules

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
"""What can be added to the history of a job."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Say when so many seconds are over; in place of an earlier one of the same key."""

    key: Timer
    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask processes, or all that there are clients of, for their states."""

    why: Timer
    seconds: float
    processes: tuple[Process, ...] | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """Tell a process to leave for good."""

    info: RankInfo


@dataclass(frozen=True, slots=True)
class Weighed:
    """Count a weighed plan."""

    choice: str
    solve_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log."""

    text: str
    fields: Mapping[str, Any]


Effect = SetTimer | Ask | Evict | Suspicion | VerdictRecord | PlanStatus | Weighed | Note
"""A suspicion is to be answered by a probe; verdicts and plans are told the job's watchers, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What else a step depends on.

    Attributes:
        at: Now.
        states: What each rank said last of itself.
        rules: What holds for all jobs.
    """

    at: datetime
    states: Mapping[int, RankState]
    rules: Rules

    def said_by(self, process: Process) -> RankState | None:
        """What a process said last of itself; None where its rank's last word is from another one, or there is none."""
        state = self.states.get(process[0])
        return state if state is not None and state.incarnation == process[1] else None

    def is_done(self, process: Process) -> bool:
        """Whether a process has said that it has finished."""
        state = self.said_by(process)
        return state is not None and state.phase is RankPhase.FINISHED


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """What an event leads to; in the making until the machine returns it.

    Clients of ranks, the plan on its way and what watchers see of the job follow its state without an effect.

    Attributes:
        job: The new state.
        moment: What else it depends on.
        save: What goes into the history, in one transaction, in this order; the new state goes with it.
        keep: Whether the new state is saved also where the history learns nothing.
        meanwhile: What the planner is asked while that is written: it has no consequence outside.
        then: Done once it is durable.
    """

    job: Job
    moment: Moment
    save: list[JobChange] = field(default_factory=list)
    keep: bool = False
    meanwhile: list[Question] = field(default_factory=list)
    then: list[Effect] = field(default_factory=list)

    @property
    def known(self) -> JobKnowledge:
        """What is known of the job."""
        return self.job.known

    @known.setter
    def known(self, known: JobKnowledge) -> None:
        self.job = replace(self.job, known=known)

    def note(self, text: str, **fields: Any) -> None:
        """A line for the log."""
        self.then.append(Note(text, fields))

    def set_timer(self, key: Timer, seconds: float) -> None:
        """Wait, if that is not waited for already."""
        if key not in self.job.timers:
            self.job = replace(self.job, timers=self.job.timers | {key})
            self.then.append(SetTimer(key, seconds))

    def note_on(self, incident_id: str, reference: str, detail: str) -> None:
        """What a person should know of an incident; the history keeps one of each reference."""
        kind, at = IncidentEventKind.NOTE, self.moment.at
        self.save.append(
            IncidentEventRecord(incident_id=incident_id, kind=kind, reference=reference, at=at, detail=detail)
        )

    def enter(self, record: PlanRecord, state: PlanState, **more: Any) -> None:
        """A proposed plan enters a state; ``more`` as of :class:`PlanEventRecord`."""
        at = self.moment.at
        self.save.append(PlanEventRecord(plan_id=record.plan_id, state=state, at=at, **more))
        self.then.append(PlanStatus(plan=record, state=state, at=at, **more))
