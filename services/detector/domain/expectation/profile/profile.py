"""The job's profile: what a planner is told of its speed."""

from dataclasses import dataclass
from typing import NamedTuple


class RankThroughput(NamedTuple):
    """One rank's estimated throughput and the half-width of its 95 % interval."""

    rank: int
    throughput: float
    margin: float


class ProfiledIteration(NamedTuple):
    """One iteration: what it took, and the tokens and sums of squares of its micro-batches by index."""

    iteration: int
    wall_seconds: float
    tokens: tuple[int, ...]
    sums_of_squares: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a planner needs to know of a job's speed; fields as in ``evenkeel.detector.v1.Profile``.

    Seconds and work are 0 of a job without a plain iteration so far.
    """

    job_id: str
    iteration: int
    epoch: int
    seconds_per_flop: float = 0.0
    tokens: float = 0.0
    sum_of_squares: float = 0.0
    fixed_seconds: float = 0.0
    transfer_seconds: float = 0.0
    iteration_seconds: float = 0.0
    throughputs: tuple[RankThroughput, ...] = ()
    exchange_seconds: float = 0.0
    gradient_seconds: float = 0.0
    recent: tuple[ProfiledIteration, ...] = ()
    ended: bool = False
