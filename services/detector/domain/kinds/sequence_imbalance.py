"""Replicas with the same number of tokens draw documents of unequal length, and all wait for the dearest.

Judged from the work alone, by what the expectation says it costs on healthy devices, so no device can be blamed for it.
Only where all replicas hold equal shares and quotas: uneven ones were given uneven work on purpose.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.kind import KindFinding, KindWatch, Look
from services.detector.domain.rolling import RollingRows
from services.detector.domain.verdict import Evidence, VerdictKind

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WINDOW, _NUM_COLUMNS = 48, 3
WORTH_TELLING = 0.10
"""Part of the job's compute time lost to waiting for the dearest replica, from which it is told."""
_CALM = 0.05
_STANDARD_ERRORS = 3.0


class SequenceImbalance(KindWatch):
    """Tells it once, until it has gone."""

    name = "sequence_imbalance"

    def __init__(self) -> None:
        # Of each iteration: its number, part of its time lost, dearest replica.
        self._recent = RollingRows(_WINDOW)
        self._told = False
        self._replicas: _Replicas | None = None

    def begin_epoch(self) -> None:
        """Other replicas."""
        self._recent.clear()
        self._told = False

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        replicas = self._comparable(look)
        if replicas is None or look.expected_seconds is None:
            return []
        window = self._recent.begin(_NUM_COLUMNS)
        mean = _lost(look.expected_seconds, replicas.of, replicas.counts, look.frame.iteration, window)
        if len(window) < _WINDOW:
            return []
        if self._told:
            self._told = mean > _CALM
            return []
        if mean < WORTH_TELLING:
            return []
        error = float(window[:, 1].std() / np.sqrt(_WINDOW))
        if mean - _STANDARD_ERRORS * error < WORTH_TELLING:
            return []
        self._told = True
        often = np.bincount(window[:, 2].astype(np.int64), minlength=len(replicas.counts))
        return [_finding(mean, error, often.tolist(), int(window[0, 0]))]

    def _comparable(self, look: Look) -> "_Replicas | None":
        """The replicas; None where what they cost is not comparable."""
        if not look.plain:
            return None
        if self._replicas is None or self._replicas.layout is not look.layout:
            self._replicas = _Replicas(look.layout)
        return self._replicas if self._replicas.even and np.count_nonzero(look.frame.tokens) else None

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        return {"recent": [[int(a), b, int(c)] for a, b, c in self._recent.rows.tolist()], "told": self._told}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._recent = RollingRows(_WINDOW, state["recent"])
        self._told = state["told"]


class _Replicas:
    """How many entries each replica has; whether they are many, and all do equal work."""

    __slots__ = ("counts", "even", "layout", "of")

    def __init__(self, layout: FrameLayout) -> None:
        self.layout, self.of = layout, layout.replicas
        self.counts = np.bincount(layout.replicas).astype(np.float64)
        self.even = len(self.counts) > 1 and bool(np.ptp(self.counts) == 0) and layout.alike
        if self.even:
            shares = np.bincount(layout.replicas, weights=layout.work_keys)
            self.even = bool(np.ptp(shares) <= 1e-6 * np.abs(shares).max())


@compiled
def _lost(expected_seconds: Floats, replica_of: Ints, counts: Floats, iteration: int, window: Floats) -> float:
    """Notes an iteration: its number, the part of the job's time that all wait for the dearest replica, and which.

    Args:
        expected_seconds: One an entry.
        replica_of: Replica of each.
        counts: Entries of each replica.
        iteration: The iteration.
        window: One row an iteration; the last one is written.

    Returns:
        Mean of the parts of all these iterations.
    """
    costs = np.zeros(len(counts))
    for entry in range(len(expected_seconds)):
        costs[replica_of[entry]] += expected_seconds[entry]
    costs /= counts
    dearest = int(np.argmax(costs))
    row = window[len(window) - 1]
    row[0], row[1], row[2] = iteration, 1.0 - costs.mean() / costs[dearest], dearest
    return float(window[:, 1].mean())


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
