"""A pipeline stage carries more work than the others: every micro-batch waits for it, whoever computes it.

Compared within each replica, so unequal sequences cancel, and across replicas by the median, so one slow device does
not make its stage look heavy. While a slow verdict stands, layers may lie unevenly on purpose: nothing is said then.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.findings.verdict import Evidence, VerdictKind
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.kinds.kind import KindFinding, KindWatch, Look
from evenkeel.services.detector.domain.memory.middle import middle_of
from evenkeel.services.detector.domain.memory.rolling import RollingRows
from evenkeel.services.detector.domain.memory.state import DERIVED

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WINDOW = 32
HEAVY = 1.10
"""From this ratio to the mean of all stages a stage counts as too heavy: a tenth of the pipeline's time."""
_STANDARD_ERRORS = 4.0


@dataclass(eq=False)
class StageImbalance(KindWatch):
    """Tells the heaviest stage once an epoch.

    Attributes:
        recent: Loads of the newest iterations, one column a stage.
        is_told: It was told in this epoch.
    """

    name = "stage_imbalance"

    recent: RollingRows = field(default_factory=lambda: RollingRows(_WINDOW))
    _first_iteration: int = -1
    is_told: bool = False
    _cells: "Cells | None" = field(default=None, metadata=DERIVED)

    def begin_epoch(self) -> None:
        """Other stages, other loads."""
        self.recent.clear()
        self.is_told = False

    def go_back(self, iteration: int) -> None:
        """The window began by then."""
        self._first_iteration = min(self._first_iteration, iteration)

    def observe(self, look: Look) -> list[KindFinding]:
        """Takes one frame."""
        if not look.plain or self.is_told:
            return []
        if look.some_ill:
            self.recent.clear()
            return []
        cells = self.cells_of(look.layout)
        if not cells.comparable:
            return []
        seconds, buffer = look.frame.compute_seconds, self.recent.prepare(cells.num_stages)
        found = load_of(seconds, cells.divisors, cells.of, cells.counts, buffer, *self.recent.next_place)
        return self._conclude(look.frame.iteration, *found)

    def _conclude(self, iteration: int, heaviest: int, load: float) -> list[KindFinding]:
        """Counts an iteration that was written down, with which this stage has the highest mean load."""
        window = self.recent.take()
        if len(window) == 1:
            self._first_iteration = iteration
        if is_no_news(load, len(window)):
            return []
        error = float(window[:, heaviest].std() / np.sqrt(_WINDOW))
        if load - _STANDARD_ERRORS * error < HEAVY:
            return []
        self.is_told = True
        return [_finding(heaviest, window.mean(axis=0).tolist(), error, self._first_iteration)]

    def cells_of(self, layout: FrameLayout) -> "Cells":
        """Who shares a replica and a stage under a layout."""
        if self._cells is None or self._cells.layout is not layout:
            self._cells = Cells(layout)
        return self._cells


class Cells:
    """Which entries share a replica and a stage.

    Attributes:
        layout: The layout.
        num_stages: Stages.
        of: Replica and stage of each entry, replica by replica.
        counts: Entries of each cell.
        divisors: Micro-batches of each entry; one number where that is the same for all and need not be told.
        comparable: There are several stages, and somebody in each of each replica.
    """

    __slots__ = ("comparable", "counts", "divisors", "layout", "num_stages", "of")

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
        num_replicas, self.num_stages = int(layout.replicas.max()) + 1, int(layout.stages.max()) + 1
        self.of: Ints = layout.replicas * self.num_stages + layout.stages
        counts = np.bincount(self.of, minlength=num_replicas * self.num_stages)
        self.counts: Floats = counts.astype(np.float64)
        self.divisors: Floats = np.ones(1) if layout.alike else layout.num_micro_batches.astype(np.float64)
        self.comparable = self.num_stages > 1 and np.count_nonzero(counts) == len(counts)


@compiled
def load_of(
    seconds: Floats, divisors: Floats, cells: Ints, counts: Floats, buffer: Floats, start: int, stop: int
) -> tuple[int, float]:
    """Writes the loads of stages down: seconds on each over the mean of the replica's stages, the median replica's.

    Args:
        seconds: One an entry.
        divisors: What each is divided by; one number if that is the same for all.
        cells: Replica and stage of each, replica by replica.
        counts: Entries of each cell.
        buffer: One row an iteration, one column a stage.
        start: Its first row that counts.
        stop: Its row that is written, the last one.

    Returns:
        The stage of the highest mean load in these iterations, and that load.
    """
    num_stages = buffer.shape[1]
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
        buffer[stop, stage] = middle_of(ratios[:, stage].copy())
        mean = buffer[start : stop + 1, stage].mean()
        if mean > load:
            heaviest, load = stage, mean
    return heaviest, load


@compiled
def is_no_news(load: float, num_iterations: int) -> bool:
    """Whether the heaviest stage is not too heavy in the mean of so many iterations, or they are too few to tell."""
    return num_iterations < _WINDOW or load < HEAVY


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
