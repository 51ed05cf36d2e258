"""The job's profile: what a planner is told of its speed.

What there are thousands of is in columns, and an item is made when it is asked for: most profiles are told to nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self, overload

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.expectation.profile.made_when_asked import MadeWhenAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class RankThroughput:
    """One rank's estimated throughput and the half-width of its 95 % interval."""

    rank: int
    throughput: float
    margin: float


class RankThroughputs(MadeWhenAsked[RankThroughput]):
    """Those of thousands of ranks, in columns; a rank's own is made when it is asked for.

    Attributes:
        ranks: Rank of each.
        throughputs: Its throughput.
        margins: Half-width of its 95 % interval.
    """

    def __init__(
        self, ranks: npt.NDArray[np.int64], throughputs: npt.NDArray[np.float64], margins: npt.NDArray[np.float64]
    ) -> None:
        self.ranks, self.throughputs, self.margins = ranks, throughputs, margins

    def __len__(self) -> int:
        return len(self.ranks)

    @overload
    def __getitem__(self, index: int) -> RankThroughput: ...

    @overload
    def __getitem__(self, index: slice) -> "RankThroughputs": ...

    def __getitem__(self, index: int | slice) -> "RankThroughput | RankThroughputs":
        if isinstance(index, slice):
            return RankThroughputs(self.ranks[index], self.throughputs[index], self.margins[index])
        return RankThroughput(
            rank=int(self.ranks[index]), throughput=float(self.throughputs[index]), margin=float(self.margins[index])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledIteration:
    """One iteration: what it took, and the tokens and sums of squares of its micro-batches by index."""

    iteration: int
    wall_seconds: float
    tokens: tuple[int, ...]
    sums_of_squares: tuple[int, ...]


class ProfiledIterations(MadeWhenAsked[ProfiledIteration]):
    """Some iterations in a table; one's own is made when it is asked for, as most profiles are told to nobody.

    Attributes:
        table: One row each, oldest first: iteration, seconds, then tokens and sum of squares of each micro-batch.
    """

    def __init__(self, table: npt.NDArray[np.float64]) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> ProfiledIteration: ...

    @overload
    def __getitem__(self, index: slice) -> "ProfiledIterations": ...

    def __getitem__(self, index: int | slice) -> "ProfiledIteration | ProfiledIterations":
        if isinstance(index, slice):
            return ProfiledIterations(self.table[index])
        row = self.table[index]
        return ProfiledIteration(
            iteration=int(row[0]),
            wall_seconds=float(row[1]),
            tokens=tuple(row[2::2].astype(np.int64).tolist()),
            sums_of_squares=tuple(row[3::2].astype(np.int64).tolist()),
        )


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
    throughputs: Sequence[RankThroughput] = field(default=())
    exchange_seconds: float = 0.0
    gradient_seconds: float = 0.0
    recent: Sequence[ProfiledIteration] = ()
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
