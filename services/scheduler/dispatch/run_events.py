"""What a run of a plan asks for, and what it is told; see :mod:`evenkeel.services.scheduler.dispatch.plan_run`."""

from dataclasses import dataclass
from enum import StrEnum

from evenkeel.layouts.rank_state import RankState
from evenkeel.services.scheduler.dispatch.protocol import Decision, RankAwayError, RankRefusedError


class Verb(StrEnum):
    """What a rank is asked."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"
    STATUS = "status"


@dataclass(frozen=True, slots=True)
class Ask:
    """Effect: ask a rank; ``again`` after a pause, because it was away."""

    rank: int
    verb: Verb
    again: bool = False


@dataclass(frozen=True, slots=True)
class Save:
    """Effect: make the decision durable; :class:`Saved` comes when it is."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Landed:
    """Effect: everybody runs it.

    Attributes:
        first_iteration: The first iteration under the plan.
    """

    first_iteration: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Effect: it comes to nothing, or cannot be carried out."""

    error: Exception


Effect = Ask | Save | Landed | Failed


@dataclass(frozen=True, slots=True)
class Answered:
    """Event: a rank's answer to what it was asked: its state, or why there is none."""

    rank: int
    verb: Verb
    answer: RankState | RankAwayError | RankRefusedError


@dataclass(frozen=True, slots=True)
class Told:
    """Event: a rank's state is known, by an answer or by its stream."""

    state: RankState


@dataclass(frozen=True, slots=True)
class Saved:
    """Event: the decision is durable."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """Event: ranks have had their time to answer, or have not been heard of for a while."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Event: nobody wants it any more."""


Event = Answered | Told | Saved | Overdue | Dropped
