"""A device that the detector suspects, and what a probe of it found beside a healthy peer. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The detector's question.

    Attributes:
        job_id: Job.
        rank: The suspect.
        incarnation: Its process.
        peer_rank: A rank that did the same work and looks healthy.
        peer_incarnation: Its process.
        iteration: Iteration at which the suspicion arose.
        at_unix_seconds: When, on the clock of the data.
        matrix_size: Side of the square matrices to multiply.
    """

    job_id: str
    rank: int
    incarnation: int
    peer_rank: int
    peer_incarnation: int
    iteration: int
    at_unix_seconds: float
    matrix_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOutcome:
    """What the probe took: the shortest repetition on each device, in seconds."""

    suspicion: Suspicion
    seconds: float
    peer_seconds: float
