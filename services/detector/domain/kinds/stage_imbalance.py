"""A pipeline stage carries more work than the others: every micro-batch waits for it, whoever computes it.

Compared within each replica, so unequal sequences cancel, and across replicas by the median, so one slow device does
not make its stage look heavy. While a slow verdict stands, layers may lie unevenly on purpose: nothing is said then.
"""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Floats, Ints
from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.memory.newest import with_newest

_WINDOW = 32
HEAVY = 1.10
"""From this ratio to the mean of all stages a stage counts as too heavy: a tenth of the pipeline's time."""
_STANDARD_ERRORS = 4.0


@dataclass(eq=False)
class StageImbalance(KindWatch):
    """Tells the heaviest stage once an epoch."""

    name = "stage_imbalance"

    # Loads of the newest iterations, one column a stage.
    _recent: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    _first_iteration: int = -1
    is_told: bool = False

    def begin_epoch(self) -> None:
        """Other stages, other loads."""
        self._recent, self.is_told = self._recent[:0], False

    def go_back(self, iteration: int) -> None:
        """The window began by then."""
        self._first_iteration = min(self._first_iteration, iteration)

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        if not look.plain or self.is_told:
            return []
        if look.some_ill:
            self._recent = self._recent[:0]
            return []
        cells = look.layout.once(Cells)
        if not cells.comparable:
            return []
        self._recent = with_newest(self._recent, cells.loads(look.frame.compute_seconds), _WINDOW)
        if len(self._recent) == 1:
            self._first_iteration = look.frame.iteration
        mean = self._recent.mean(axis=0)
        heaviest = int(mean.argmax())
        if len(self._recent) < _WINDOW or mean[heaviest] < HEAVY:
            return []
        error = float(self._recent[:, heaviest].std() / np.sqrt(_WINDOW))
        if mean[heaviest] - _STANDARD_ERRORS * error < HEAVY:
            return []
        self.is_told = True
        return [_finding(heaviest, mean.tolist(), error, self._first_iteration)]


class Cells:
    """Which entries share a replica and a stage.

    Attributes:
        num_stages: Stages.
        of: Replica and stage of each entry, replica by replica.
        counts: Entries of each cell.
        divisors: Micro-batches of each entry.
        comparable: There are several stages, and somebody in each of each replica.
    """

    __slots__ = ("comparable", "counts", "divisors", "num_stages", "of")

    def __init__(self, layout: FrameLayout) -> None:
        num_replicas, self.num_stages = int(layout.replicas.max()) + 1, int(layout.stages.max()) + 1
        self.of: Ints = layout.replicas * self.num_stages + layout.stages
        counts = np.bincount(self.of, minlength=num_replicas * self.num_stages)
        self.counts: Floats = counts.astype(np.float64)
        self.divisors: Floats = layout.num_micro_batches.astype(np.float64)
        self.comparable = self.num_stages > 1 and np.count_nonzero(counts) == len(counts)

    def loads(self, seconds: Floats) -> Floats:
        """Seconds on each stage over the mean of the replica's stages, the median replica's; ``seconds`` by entry."""
        totals = np.bincount(self.of, weights=seconds / self.divisors) / self.counts
        loads = totals.reshape(-1, self.num_stages)
        found: Floats = np.median(loads / loads.mean(axis=1, keepdims=True), axis=0)
        return found


def _finding(heaviest: int, mean: list[float], error: float, first_iteration: int) -> KindFinding:
    ratio = mean[heaviest]
    loads = ", ".join(f"{load:.2f}" for load in mean[:32])
    return KindFinding(
        kind=VerdictKind.STAGE_IMBALANCE,
        throughput=1 / ratio,
        confidence=0.99,
        first_iteration=first_iteration,
        evidence=(
            Evidence(
                name=f"load of stage {heaviest}",
                value=ratio,
                unit="ratio",
                text=f"seconds of a micro-batch over the mean of all stages, {_WINDOW} iterations, +- {2 * error:.3f}",
            ),
            Evidence(name="stages", value=float(len(mean)), unit="stages", text=f"loads from the first on: {loads}"),
        ),
        advice=(
            f"workload, not illness: move about {100 * (1 - 1 / ratio):.0f} % of stage {heaviest}'s work to lighter "
            "stages; all of the pipeline waits for it"
        ),
    )
