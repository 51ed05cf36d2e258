"""The plain values that the rules work on."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.frames import Frames
from evenkeel.numeric.arrays import Ints


class EventKind(StrEnum):
    """What can happen to a process."""

    STARTED = "started"
    DIED = "died"
    FINISHED = "finished"
    STREAM_BROKEN = "stream_broken"
    CONNECTION_LOST = "connection_lost"
    OTHER = "other"


ENDS = frozenset((EventKind.DIED, EventKind.FINISHED))
"""Kinds after which a process is no more."""


class ArrivedEvent(NamedTuple):
    """Something happened to a process.

    Attributes:
        at_seconds: When, Unix seconds, by the reporter's clock; once passed on, by ours where that is far off.
        kind: What.
        rank: To which rank.
        incarnation: To which of its processes.
        payload: The event as it came; adapters put it in and take it out again.
    """

    at_seconds: float
    kind: EventKind
    rank: int
    incarnation: int
    payload: Any


class ArrivedProgress(NamedTuple):
    """Where one rank was inside an iteration.

    Attributes:
        rank: Rank within the job.
        incarnation: Which process of the rank.
        report: What it told: its ``operation_count`` grows from report to report when operations were started in
            between, and ``seconds_in_operation`` is the time since the newest was reached, by the rank's own clock.
    """

    rank: int
    incarnation: int
    report: Any


class Arrived(NamedTuple):
    """What a fetch brought of one job, checked.

    Attributes:
        batches: The batches, in the order in which they came.
        offsets: Offset of the record of each.
        progress: Newest report of each process that reported.
        events: In the order in which they came.
    """

    batches: Batches
    offsets: Ints
    progress: list[ArrivedProgress]
    events: list[ArrivedEvent]


class RankState(NamedTuple):
    """One rank in a picture.

    Attributes:
        rank: Rank within the job.
        incarnation: Which process of the rank.
        report: The newest that it told, as in :class:`ArrivedProgress`; None if it never told any.
        seconds_since_heard: Since anything came from it.
        seconds_since_moved: Since its operation count moved.
    """

    rank: int
    incarnation: int
    report: Any
    seconds_since_heard: float
    seconds_since_moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Who is where, ascending by rank.

    Attributes:
        at_seconds: When it was taken, Unix seconds.
        ranks: Every live rank.
        seconds_without_progress: Since any rank of the job moved.
    """

    at_seconds: float
    ranks: tuple[RankState, ...]
    seconds_without_progress: float


Observed = Frames | Picture | ArrivedEvent


@dataclass(slots=True)
class JobMemory:
    """What an earlier process of this service said of one job.

    Attributes:
        next_sequence: Number of its next observation.
        last_frames: Its newest frames; None if none were found.
        events: The events that were passed on, in order.
    """

    next_sequence: int = 0
    last_frames: Frames | None = None
    events: list[ArrivedEvent] = field(default_factory=list)


class Numbered(NamedTuple):
    """An observation with its place in the job's stream; of frames, that of the first one."""

    sequence: int
    observed: Observed
