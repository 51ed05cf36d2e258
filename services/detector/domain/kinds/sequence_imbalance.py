"""Replicas with the same number of tokens draw documents of unequal length, and all wait for the dearest.

Judged from the work alone, by what the expectation says it costs on healthy devices, so no device can be blamed for it.
Only where all replicas hold equal shares and quotas: uneven ones were given uneven work on purpose.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain.kind import KindFinding, KindWatch, Look
from services.detector.domain.observation import FrameObservation
from services.detector.domain.pipeline_grid import same_numbers
from services.detector.domain.verdict import Evidence, VerdictKind

Floats = npt.NDArray[np.float64]

_WINDOW = 48
WORTH_TELLING = 0.10
"""Part of the job's compute time lost to waiting for the dearest replica, from which it is told."""
_CALM = 0.05
_STANDARD_ERRORS = 3.0


class SequenceImbalance(KindWatch):
    """Tells it once, until it has gone."""

    name = "sequence_imbalance"

    def __init__(self) -> None:
        # A list: an empty deque is as large as sixty-four entries.
        self._recent: list[tuple[int, float, int]] = []
        self._told = False
        self._replicas: _Replicas | None = None

    def begin_epoch(self) -> None:
        """Other replicas."""
        self._recent.clear()
        self._told = False

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        costs = self._costs(look)
        if len(costs) < 2:
            return []
        lost = 1.0 - float(costs.mean() / costs.max())
        del self._recent[: max(len(self._recent) + 1 - _WINDOW, 0)]
        self._recent.append((look.frame.iteration, lost, int(np.argmax(costs))))
        if len(self._recent) < _WINDOW:
            return []
        losses = np.array([each[1] for each in self._recent])
        mean = float(losses.mean())
        if self._told:
            self._told = mean > _CALM
            return []
        if mean < WORTH_TELLING:
            return []
        error = float(losses.std() / np.sqrt(_WINDOW))
        if mean - _STANDARD_ERRORS * error < WORTH_TELLING:
            return []
        self._told = True
        dearest = np.bincount([each[2] for each in self._recent], minlength=len(costs))
        return [_finding(mean, error, dearest.tolist(), self._recent[0][0])]

    def _costs(self, look: Look) -> Floats:
        """Expected compute seconds of each replica; empty where they are not comparable."""
        frame = look.frame
        if not look.plain or look.expected_seconds is None:
            return np.zeros(0)
        if self._replicas is None or not self._replicas.fits(frame):
            self._replicas = _Replicas(frame)
        if not self._replicas.even or not np.count_nonzero(frame.tokens):
            return np.zeros(0)
        return np.asarray(np.bincount(frame.replicas, weights=look.expected_seconds) / self._replicas.counts)

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        return {"recent": [list(each) for each in self._recent], "told": self._told}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._recent = [(int(a), float(b), int(c)) for a, b, c in state["recent"]]
        self._told = state["told"]


class _Replicas:
    """How many entries each replica has; whether they are many, and all do equal work."""

    __slots__ = ("_known", "counts", "even")

    def __init__(self, frame: FrameObservation) -> None:
        self._known = frame.replicas, frame.num_micro_batches, frame.work_keys
        self.counts = np.bincount(frame.replicas)
        self.even = len(self.counts) > 1 and bool(np.ptp(self.counts) == 0 and np.ptp(frame.num_micro_batches) == 0)
        if self.even:
            shares = np.bincount(frame.replicas, weights=frame.work_keys)
            self.even = bool(np.ptp(shares) <= 1e-6 * np.abs(shares).max())

    def fits(self, frame: FrameObservation) -> bool:
        """Whether this frame's entries are the same."""
        replicas, num_micro_batches, work_keys = self._known
        return (
            same_numbers(replicas, frame.replicas)
            and same_numbers(num_micro_batches, frame.num_micro_batches)
            and (work_keys is frame.work_keys or np.array_equal(work_keys, frame.work_keys))
        )


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
