"""What was really done to the job and its services: the truth that verdicts are held against. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class TruthKind(StrEnum):
    """Kinds of things the demo does; also the ``kind`` of an event in summary.json."""

    LONG_DOCUMENTS = "long_documents"
    COMPUTE_SLOW = "compute_slow"
    RECOVERED = "recovered"
    FAIL_STOP = "fail_stop"
    REJOINED = "rejoined"
    DETECTOR_KILLED = "detector_killed"
    SCHEDULER_KILLED = "scheduler_killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One thing done.

    Attributes:
        at: When, Unix seconds.
        iteration: Iteration in progress at that time.
        epoch: Epoch in force at that time.
        rank: Rank it was done to; None when it was not done to a rank.
        incarnation: The rank's incarnation it concerns; None as above.
        throughput: The device's true speed from then on, 1.0 = healthy, 0 = dead; None as above.
    """

    kind: TruthKind
    at: float
    iteration: int
    epoch: int
    rank: int | None = None
    incarnation: int | None = None
    throughput: float | None = None


def true_throughputs(truths: Iterable[Truth], num_ranks: int, at: float) -> tuple[float, ...]:
    """Each device's true speed at a moment: the newest truth about it, 1.0 before the first."""
    speeds = [1.0] * num_ranks
    for truth in sorted(truths, key=lambda truth: truth.at):
        if truth.at <= at and truth.rank is not None and truth.throughput is not None:
            speeds[truth.rank] = truth.throughput
    return tuple(speeds)


def bound_steps(truths: Sequence[Truth], num_ranks: int) -> tuple[tuple[float, float], ...]:
    """The proportional bound (sum of true speeds over the number of devices) as (from when, bound), one per change."""
    changes = sorted({truth.at for truth in truths if truth.throughput is not None})
    return tuple((at, sum(true_throughputs(truths, num_ranks, at)) / num_ranks) for at in changes)


def disturbs(truth: Truth) -> bool:
    """True when the truth changes what the job could reach: everything but workload and killed services."""
    return truth.throughput is not None
