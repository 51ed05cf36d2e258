"""The plain values that the rules work on. Payloads are opaque: adapters put messages in and take them out again."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class ArrivedSample(NamedTuple):
    """What one rank measured in one iteration. A tuple, because a large job brings tens of thousands a second.

    Attributes:
        rank: Rank within the job.
        incarnation: Which process of the rank.
        node: Where it ran.
        device: On which device of the node.
        epoch: Epoch of the layout.
        iteration: Which iteration.
        wall_seconds: How long the iteration took.
        offset: Offset of the record that brought it.
        payload: The sample as it came.
    """

    rank: int
    incarnation: int
    node: str
    device: str
    epoch: int
    iteration: int
    wall_seconds: float
    offset: int
    payload: Any


class ArrivedProgress(NamedTuple):
    """Where one rank was inside an iteration.

    Attributes:
        rank: Rank within the job.
        incarnation: Which process of the rank.
        operation_count: Grows from report to report when operations were started in between.
        seconds_in_operation: Time since the newest one was reached, by the rank's own clock.
        payload: The progress as it came.
    """

    rank: int
    incarnation: int
    operation_count: int
    seconds_in_operation: float
    payload: Any


class EventKind(StrEnum):
    """What can happen to a process."""

    STARTED = "started"
    DIED = "died"
    FINISHED = "finished"
    STREAM_BROKEN = "stream_broken"
    CONNECTION_LOST = "connection_lost"
    OTHER = "other"


class ArrivedEvent(NamedTuple):
    """Something happened to a process.

    Attributes:
        at_seconds: When, Unix seconds, by the reporter's clock.
        kind: What.
        rank: To which rank.
        incarnation: To which of its processes.
        payload: The event as it came.
    """

    at_seconds: float
    kind: EventKind
    rank: int
    incarnation: int
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedFrame:
    """All samples of one iteration that came in time.

    Attributes:
        epoch: Epoch of all of them.
        iteration: Iteration of all of them.
        entries: Ascending by rank, one per rank.
        missing_ranks: Ascending; expected, and not there.
        closed_at_seconds: When the frame closed, Unix seconds.
        last_sample_at_seconds: When its last sample arrived, Unix seconds.
    """

    epoch: int
    iteration: int
    entries: Collection[ArrivedSample]
    missing_ranks: tuple[int, ...]
    closed_at_seconds: float
    last_sample_at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank in a picture.

    Attributes:
        rank: Rank within the job.
        incarnation: Which process of the rank.
        payload: Its newest progress as it came; None if it never sent any.
        seconds_since_heard: Since anything came from it.
        seconds_since_moved: Since its operation count moved.
    """

    rank: int
    incarnation: int
    payload: Any
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


Observed = ClosedFrame | Picture | ArrivedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """An observation with its place in the job's stream."""

    sequence: int
    observed: Observed
