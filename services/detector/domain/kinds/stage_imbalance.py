"""A pipeline stage carries more work than the others: every micro-batch waits for it, whoever computes it.

Compared within each replica, so unequal sequences cancel, and across replicas by the median, so one slow device does
not make its stage look heavy. While a slow verdict stands, layers may lie unevenly on purpose: nothing is said then.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.kind import KindFinding, KindWatch, Look
from services.detector.domain.middle import middle_of
from services.detector.domain.rolling import RollingRows
from services.detector.domain.verdict import Evidence, VerdictKind

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WINDOW = 32
HEAVY = 1.10
"""From this ratio to the mean of all stages a stage counts as too heavy: a tenth of the pipeline's time."""
_STANDARD_ERRORS = 4.0


class StageImbalance(KindWatch):
    """Tells the heaviest stage once an epoch."""

    name = "stage_imbalance"

    def __init__(self) -> None:
        self._recent = RollingRows(_WINDOW)
        self._first_iteration = -1
        self._told = False
        self._cells: _Cells | None = None

    def begin_epoch(self) -> None:
        """Other stages, other loads."""
        self._recent.clear()
        self._told = False

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        if not look.plain or self._told:
            return []
        if look.some_ill:
            self._recent.clear()
            return []
        layout, seconds = look.layout, look.frame.compute_seconds
        if self._cells is None or self._cells.layout is not layout:
            self._cells = _Cells(layout)
        if not self._cells.comparable:
            return []
        window = self._recent.begin(self._cells.shape[1])  # loads of another number of stages start afresh
        heaviest, load = self._cells.load(seconds, window)
        if len(window) == 1:
            self._first_iteration = look.frame.iteration
        if len(window) < _WINDOW or load < HEAVY:
            return []
        error = float(window[:, heaviest].std() / np.sqrt(_WINDOW))
        if load - _STANDARD_ERRORS * error < HEAVY:
            return []
        self._told = True
        return [_finding(heaviest, window.mean(axis=0).tolist(), error, self._first_iteration)]

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        return {"recent": self._recent.rows.tolist(), "first_iteration": self._first_iteration, "told": self._told}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self._recent = RollingRows(_WINDOW, state["recent"])
        self._first_iteration = state["first_iteration"]
        self._told = state["told"]


class _Cells:
    """Which entries share a replica and a stage."""

    __slots__ = ("_cells", "_counts", "_divisors", "comparable", "layout", "shape")

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
        self.shape = int(layout.replicas.max()) + 1, int(layout.stages.max()) + 1
        self._cells: Ints = layout.replicas * self.shape[1] + layout.stages
        counts = np.bincount(self._cells, minlength=self.shape[0] * self.shape[1])
        self._counts = counts.astype(np.float64)
        self._divisors = np.ones(1) if layout.alike else layout.num_micro_batches.astype(np.float64)
        self.comparable = self.shape[1] > 1 and np.count_nonzero(counts) == len(counts)

    def load(self, seconds: Floats, window: Floats) -> tuple[int, float]:
        """The stage of the highest mean load in a window, and that load.

        Args:
            seconds: One an entry.
            window: One row an iteration, one column a stage; the last row is written: seconds on each stage over the
                mean of the replica's stages, the median replica's.
        """
        return _load(seconds, self._divisors, self._cells, self._counts, window)


@compiled
def _load(seconds: Floats, divisors: Floats, cells: Ints, counts: Floats, window: Floats) -> tuple[int, float]:
    """Does what :meth:`_Cells.load` does.

    Args:
        seconds: One an entry.
        divisors: What each is divided by; one number if that is the same for all.
        cells: Replica and stage of each, replica by replica.
        counts: Entries of each cell.
        window: The last row is written.
    """
    num_stages = window.shape[1]
    num_replicas = len(counts) // num_stages
    totals = np.zeros(len(counts))
    for entry in range(len(seconds)):
        totals[cells[entry]] += seconds[entry] / divisors[entry if len(divisors) > 1 else 0]
    totals /= counts
    ratios = totals.reshape((num_replicas, num_stages))
    for replica in range(num_replicas):
        ratios[replica] /= ratios[replica].sum() / num_stages
    heaviest, load = 0, -1.0
    for stage in range(num_stages):
        window[len(window) - 1, stage] = middle_of(ratios[:, stage].copy())
        mean = window[:, stage].mean()
        if mean > load:
            heaviest, load = stage, mean
    return heaviest, load


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
