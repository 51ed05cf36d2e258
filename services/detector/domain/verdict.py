"""What the detector finds: verdicts with culprits and evidence, and the job's profile.

A verdict's id is a pure function of what it says about whom, so a finding published again after a restart is the same
verdict and readers drop the second one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, overload

import numpy as np
import numpy.typing as npt

from contracts import verdict_ids


class VerdictKind(StrEnum):
    """Kinds of verdicts that this detector reaches."""

    FAIL_STOP = "fail_stop"
    HANG = "hang"
    COMPUTE_SLOW = "compute_slow"
    NOT_FINITE = "not_finite"
    SPIKE = "spike"
    RECOVERED = "recovered"
    REJOINED = "rejoined"
    COMMUNICATION_SLOW = "communication_slow"
    COMMUNICATION_RECOVERED = "communication_recovered"
    STAGE_IMBALANCE = "stage_imbalance"
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    JITTER = "jitter"
    SUSPECTED_CORRUPTION = "suspected_corruption"
    INPUT_STALL = "input_stall"
    PERIODIC_PAUSE = "periodic_pause"


REPORT_ONLY = frozenset(
    (
        VerdictKind.NOT_FINITE,
        VerdictKind.SPIKE,
        VerdictKind.STAGE_IMBALANCE,
        VerdictKind.SEQUENCE_IMBALANCE,
        VerdictKind.JITTER,
        VerdictKind.SUSPECTED_CORRUPTION,
        VerdictKind.INPUT_STALL,
        VerdictKind.PERIODIC_PAUSE,
    )
)
"""Kinds that are told with advice and never lead to a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One process accused or cleared, and where it runs; node and device are empty when they were never heard of."""

    rank: int
    incarnation: int
    node: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One fact behind a verdict that a person can check."""

    name: str
    value: float
    unit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One finding.

    Attributes:
        verdict_id: See :func:`verdict_id`.
        job_id: Job.
        kind: What.
        culprits: Who.
        throughput: The culprit's throughput: 1 = healthy, 0 = dead.
        throughput_margin: Half-width of its 95 % interval.
        confidence: Probability that the verdict is right, 0 to 1.
        first_iteration: First iteration that showed it.
        decided_iteration: Iteration at which it was decided.
        decided_at_unix_seconds: When, on the clock of the data.
        evidence: What it rests on.
    """

    verdict_id: str
    job_id: str
    kind: VerdictKind
    culprits: tuple[Culprit, ...]
    throughput: float
    throughput_margin: float = 0.0
    confidence: float
    first_iteration: int
    decided_iteration: int
    decided_at_unix_seconds: float
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankThroughput:
    """One rank's estimated throughput and the half-width of its 95 % interval."""

    rank: int
    throughput: float
    margin: float


class RankThroughputs(Sequence[RankThroughput]):
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledIteration:
    """One iteration: what it took, and the tokens and sums of squares of its micro-batches by index."""

    iteration: int
    wall_seconds: float
    tokens: tuple[int, ...]
    sums_of_squares: tuple[int, ...]


class ProfiledIterations(Sequence[ProfiledIteration]):
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


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


def verdict_id(job_id: str, kind: VerdictKind, *what: object) -> str:
    """The id of a finding: the same job, kind and particulars always give the same id."""
    return verdict_ids.verdict_id(job_id, kind.value, *what)
