"""Replicas with the same number of tokens draw documents of unequal length, and all wait for the dearest.

Judged from the work alone, by what the expectation says it costs on healthy devices, so no device can be blamed for it.
Only where all replicas hold equal shares and quotas: uneven ones were given uneven work on purpose.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.kind import KindFinding, KindWatch, Look
from services.detector.domain.rolling import RollingRows
from services.detector.domain.verdict import Evidence, VerdictKind

Floats = npt.NDArray[np.float64]

_WINDOW = 48
WORTH_TELLING = 0.10
"""Part of the job's compute time lost to waiting for the dearest replica, from which it is told."""
_CALM = 0.05
_STANDARD_ERRORS = 3.0
_SHARES = np.full(_WINDOW, 1.0 / _WINDOW)


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
        costs = self._costs(look)
        if costs is None:
            return []
        dearest = int(costs.argmax())
        lost = 1.0 - float(np.add.reduce(costs)) / len(costs) / float(costs.item(dearest))
        self._recent.append((look.frame.iteration, lost, dearest))
        if len(self._recent) < _WINDOW:
            return []
        losses = self._recent.rows[:, 1]
        mean = float(_SHARES.dot(losses))
        if self._told:
            self._told = mean > _CALM
            return []
        if mean < WORTH_TELLING:
            return []
        error = float(losses.std() / np.sqrt(_WINDOW))
        if mean - _STANDARD_ERRORS * error < WORTH_TELLING:
            return []
        self._told = True
        first, often = self._recent.rows[0, 0], self._recent.rows[:, 2].astype(np.int64)
        return [_finding(mean, error, np.bincount(often, minlength=len(costs)).tolist(), int(first))]

    def _costs(self, look: Look) -> Floats | None:
        """Expected compute seconds of each replica; None where they are not comparable."""
        if not look.plain or look.expected_seconds is None:
            return None
        if self._replicas is None or self._replicas.layout is not look.layout:
            self._replicas = _Replicas(look.layout)
        if not self._replicas.even or not np.count_nonzero(look.frame.tokens):
            return None
        costs: Floats = np.asarray(np.bincount(look.layout.replicas, look.expected_seconds), dtype=np.float64)
        costs /= self._replicas.counts
        return costs

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        return {"recent": [[int(a), b, int(c)] for a, b, c in self._recent.rows.tolist()], "told": self._told}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._recent = RollingRows(_WINDOW, state["recent"])
        self._told = state["told"]


class _Replicas:
    """How many entries each replica has; whether they are many, and all do equal work."""

    __slots__ = ("counts", "even", "layout")

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
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
