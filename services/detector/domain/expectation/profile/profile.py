"""The job's profile: what a planner is told of its speed."""

from dataclasses import dataclass
from typing import NamedTuple, Self


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
    """What a planner needs to know of a job's speed; fields as in ``evenkeel.detector.v1.Profile``."""

    job_id: str
    iteration: int
    epoch: int
    seconds_per_flop: float
    tokens: float
    sum_of_squares: float
    fixed_seconds: float
    transfer_seconds: float
    iteration_seconds: float
    throughputs: tuple[RankThroughput, ...] = ()
    exchange_seconds: float = 0.0
    gradient_seconds: float = 0.0
    recent: tuple[ProfiledIteration, ...] = ()
    ended: bool = False

    @classmethod
    def unknown(cls, job_id: str, iteration: int, epoch: int) -> Self:
        """That of a job without a plain iteration so far."""
        return cls(
            job_id=job_id,
            iteration=iteration,
            epoch=epoch,
            seconds_per_flop=0.0,
            tokens=0.0,
            sum_of_squares=0.0,
            fixed_seconds=0.0,
            transfer_seconds=0.0,
            iteration_seconds=0.0,
        )
