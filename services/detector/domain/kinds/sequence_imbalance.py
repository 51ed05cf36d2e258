"""Replicas with the same number of tokens draw documents of unequal length, and all wait for the dearest.

Judged from the work alone, by what the expectation says it costs on healthy devices, so no device can be blamed for it.
Only where all replicas hold equal shares and quotas: uneven ones were given uneven work on purpose.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.memory.newest import with_newest

_WINDOW = 48
WORTH_TELLING = 0.10
"""Part of the job's compute time lost to waiting for the dearest replica, from which it is told."""
_CALM = 0.05
_STANDARD_ERRORS = 3.0


@dataclass(eq=False)
class SequenceImbalance(KindWatch):
    """Tells it once, until it has gone."""

    name = "sequence_imbalance"

    # Of the newest iterations: number, part of its time lost, dearest replica.
    _recent: Floats = field(default_factory=lambda: np.zeros((0, 3)))
    is_told: bool = False

    def begin_epoch(self) -> None:
        """Other replicas."""
        self._recent, self.is_told = self._recent[:0], False

    def go_back(self, iteration: int) -> None:
        """What is remembered was by then."""
        self._recent[:, 0] = np.minimum(self._recent[:, 0], iteration)

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        replicas = look.layout.once(Replicas)
        if not look.plain or not replicas.even or not look.frame.tokens.any():
            return []
        assert look.expected_seconds is not None
        costs = np.bincount(replicas.of, weights=look.expected_seconds) / replicas.counts
        lost = 1.0 - costs.mean() / costs.max()
        self._recent = with_newest(self._recent, (look.frame.iteration, lost, int(costs.argmax())), _WINDOW)
        mean = float(self._recent[:, 1].mean())
        if len(self._recent) < _WINDOW:
            return []
        if self.is_told:
            self.is_told = mean > _CALM
            return []
        error = float(self._recent[:, 1].std() / np.sqrt(_WINDOW))
        if mean - _STANDARD_ERRORS * error < WORTH_TELLING:
            return []
        self.is_told = True
        often = np.bincount(self._recent[:, 2].astype(np.int64))
        return [_finding(mean, error, often.tolist(), int(self._recent[0, 0]))]


class Replicas:
    """Who belongs to which replica.

    Attributes:
        of: Replica of each entry.
        counts: Entries of each replica.
        even: There are several, and all do equal work.
    """

    __slots__ = ("counts", "even", "of")

    def __init__(self, layout: FrameLayout) -> None:
        self.of = layout.replicas
        self.counts = np.bincount(layout.replicas).astype(np.float64)
        self.even = len(self.counts) > 1 and bool(np.ptp(self.counts) == 0) and layout.alike
        if self.even:
            shares = np.bincount(layout.replicas, weights=layout.work_keys)
            self.even = bool(np.ptp(shares) <= 1e-6 * np.abs(shares).max())


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
