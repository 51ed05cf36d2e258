"""What services keep beside the history of jobs: plain values, no SQL. Times carry a zone; seconds are floats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingStateRecord:
    """How a job stands, for whoever goes on with it; takes the place of what was saved before.

    Attributes:
        job_id: The job.
        version: One more than that of what it takes the place of; the first is 1.
        save_id: Of whoever saves it, this time: the same version by another one is refused.
        document: All of it but what has rows of its own: seats, layouts, plans, verdicts.
        plan_ids: Plans that the document is about.
        seats: The processes of those ranks of which something has changed.
    """

    job_id: str
    version: int
    save_id: str
    document: Mapping[str, Any]
    plan_ids: tuple[str, ...] = ()
    seats: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


class RollupRecord(NamedTuple):
    """One rank over the iterations ``[first_iteration, stop_iteration)``. A tuple: large jobs make thousands a second.

    ``*_seconds`` are means per iteration except ``*_min`` and ``*_max``; ``tokens`` and ``sum_of_squares`` are sums
    over the window; ``num_iterations`` counts the samples that went in.
    """

    job_id: str
    rank: int
    incarnation: int
    epoch: int
    first_iteration: int
    stop_iteration: int
    num_iterations: int
    node: str
    device: str
    started_at: datetime
    wall_seconds: float
    wall_seconds_min: float
    wall_seconds_max: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    data_seconds: float
    tensor_wait_seconds: float
    pipeline_wait_seconds: float
    gradient_wait_seconds: float
    vote_wait_seconds: float
    tokens: int
    sum_of_squares: float
    loss: float | None
    peak_memory_bytes: int


class SnapshotRecord(NamedTuple):
    """State of one job in a consumer group.

    Attributes:
        topic: Topic it was learned from.
        partition: Partition of that topic.
        job_id: The job.
        next_offset: First offset that the state does not cover: where to read on.
        state: The state itself; never a pickle.
    """

    topic: str
    partition: int
    job_id: str
    next_offset: int
    state: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who is in charge: ``term`` grows with each change of hands, ``address`` is where ``holder`` is found."""

    name: str
    term: int
    holder: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRecord:
    """A Kafka record to be sent when the transaction has committed; ``event_id`` becomes ``ce_id``."""

    event_id: str
    topic: str
    key: str
    value: bytes
