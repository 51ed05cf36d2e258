"""Replicas with the same number of tokens draw documents of unequal length, and all wait for the dearest.

Judged from the work alone, by what the expectation says it costs on healthy devices, so no device can be blamed for it.
Only where all replicas hold equal shares and quotas: uneven ones were given uneven work on purpose.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.memory.rolling import RollingRows
from evenkeel.services.detector.domain.memory.state import DERIVED

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WINDOW = 48
NUM_COLUMNS = 3
"""What is noted of an iteration."""
WORTH_TELLING = 0.10
"""Part of the job's compute time lost to waiting for the dearest replica, from which it is told."""
_CALM = 0.05
_STANDARD_ERRORS = 3.0


@dataclass(eq=False)
class SequenceImbalance(KindWatch):
    """Tells it once, until it has gone.

    Attributes:
        recent: Of the newest iterations: number, part of its time lost, dearest replica.
        is_told: It was told, and has not gone since.
    """

    name = "sequence_imbalance"

    recent: RollingRows = field(default_factory=lambda: RollingRows(_WINDOW))
    is_told: bool = False
    _replicas: "Replicas | None" = field(default=None, metadata=DERIVED)

    def begin_epoch(self) -> None:
        """Other replicas."""
        self.recent.clear()
        self.is_told = False

    def go_back(self, iteration: int) -> None:
        """What is remembered was by then."""
        numbers = self.recent.rows[:, :1]
        np.minimum(numbers, iteration, out=numbers)

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        replicas = self._comparable(look)
        if replicas is None or look.expected_seconds is None:
            return []
        buffer = self.recent.prepare(NUM_COLUMNS)
        mean = lost(
            look.expected_seconds, replicas.of, replicas.counts, look.frame.iteration, buffer, *self.recent.next_place
        )
        return self._conclude(mean)

    def _conclude(self, mean: float) -> list[KindFinding]:
        """Counts an iteration that was written down, with which so much is lost in the mean."""
        window = self.recent.take()
        if is_no_news(mean, len(window), self.is_told):
            return []
        if self.is_told:
            self.is_told = False
            return []
        error = float(window[:, 1].std() / np.sqrt(_WINDOW))
        if mean - _STANDARD_ERRORS * error < WORTH_TELLING:
            return []
        self.is_told = True
        often = np.bincount(window[:, 2].astype(np.int64))
        return [_finding(mean, error, often.tolist(), int(window[0, 0]))]

    def replicas_of(self, layout: FrameLayout) -> "Replicas":
        """Who belongs to which replica under a layout."""
        if self._replicas is None or self._replicas.layout is not layout:
            self._replicas = Replicas(layout)
        return self._replicas

    def _comparable(self, look: Look) -> "Replicas | None":
        """The replicas; None where what they cost is not comparable."""
        if not look.plain:
            return None
        replicas = self.replicas_of(look.layout)
        return replicas if replicas.even and np.count_nonzero(look.frame.tokens) else None


class Replicas:
    """Who belongs to which replica.

    Attributes:
        layout: The layout.
        of: Replica of each entry.
        counts: Entries of each replica.
        even: There are several, and all do equal work.
    """

    __slots__ = ("counts", "even", "layout", "of")

    def __init__(self, layout: FrameLayout) -> None:
        self.layout, self.of = layout, layout.replicas
        self.counts = np.bincount(layout.replicas).astype(np.float64)
        self.even = len(self.counts) > 1 and bool(np.ptp(self.counts) == 0) and layout.alike
        if self.even:
            shares = np.bincount(layout.replicas, weights=layout.work_keys)
            self.even = bool(np.ptp(shares) <= 1e-6 * np.abs(shares).max())


@compiled
def lost(
    expected_seconds: Floats, replica_of: Ints, counts: Floats, iteration: int, buffer: Floats, start: int, stop: int
) -> float:
    """Writes an iteration down: its number, the part of the job's time that waits for the dearest replica, and which.

    Args:
        expected_seconds: One an entry.
        replica_of: Replica of each.
        counts: Entries of each replica.
        iteration: The iteration.
        buffer: One row an iteration.
        start: Its first row that counts.
        stop: Its row that is written, the last one.

    Returns:
        Mean of the parts of all these iterations.
    """
    costs = np.zeros(len(counts))
    for entry in range(len(expected_seconds)):
        costs[replica_of[entry]] += expected_seconds[entry]
    costs /= counts
    dearest = int(np.argmax(costs))
    row = buffer[stop]
    row[0], row[1], row[2] = iteration, 1.0 - costs.mean() / costs[dearest], dearest
    return float(buffer[start : stop + 1, 1].mean())


@compiled
def is_no_news(mean: float, num_iterations: int, is_told: bool) -> bool:
    """Whether an iteration leaves things as they were, without a look at how sure the mean is.

    Args:
        mean: Of the parts that were lost in so many iterations.
        num_iterations: As many, this one included.
        is_told: It was told.
    """
    return num_iterations < _WINDOW or (mean > _CALM if is_told else mean < WORTH_TELLING)


def _finding(lost: float, error: float, dearest: list[int], first_iteration: int) -> KindFinding:
    most = int(np.argmax(dearest))
    return KindFinding(
        kind=VerdictKind.SEQUENCE_IMBALANCE,
        throughput=1 - lost,
        confidence=0.99,
        first_iteration=first_iteration,
        evidence=(
            Evidence(
                name="lost to unequal sequences",
                value=100 * lost,
                unit="%",
                text=f"of compute, mean over {_WINDOW} iterations, +- {200 * error:.1f} points, from lengths alone",
            ),
            Evidence(
                name="dearest replica",
                value=float(most),
                unit="replica",
                text=f"replica {most} was the dearest in {dearest[most]} of {sum(dearest)} iterations",
            ),
        ),
        advice="workload, not illness: deal out micro-batches by predicted cost (N and squared lengths), not by tokens",
    )
