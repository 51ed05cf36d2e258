"""The grid of the benchmark: which cells there are, how many traces each wants, and the seeds of each."""

import zlib
from dataclasses import dataclass

from benchmarks.detection.traces.simulated_run import OPERATION_NOISE_SIGMA, SHAPES
from benchmarks.detection.traces.traces import Scenario, Trace, make_trace

SLOWDOWNS = (3.0, 5.0, 10.0, 15.0, 25.0, 50.0)
BASELINE_TRACES = 60
"""Traces of a cell that the published detectors are run on too, beyond the smallest shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Traces that differ in their seeds only.

    Attributes:
        shape: TP x DP x PP.
        slowdown_percent: Size of the slowdown; 0 = healthy.
        scenario: What happens.
        noise_percent: Width of one rank's noise in one iteration.
        num_iterations: Length of a trace.
    """

    shape: str
    slowdown_percent: float
    scenario: Scenario = Scenario.PERSISTENT
    noise_percent: float = 100 * OPERATION_NOISE_SIGMA
    num_iterations: int = 300

    @property
    def name(self) -> str:
        """Names the cell in results and decides its seeds."""
        return f"{self.shape}/{self.scenario}/slow {self.slowdown_percent:g}/noise {self.noise_percent:g}"

    def seed(self, index: int) -> int:
        """Seed of one of its traces; no two cells share one."""
        return zlib.crc32(self.name.encode()) * 1_000_000 + index

    def trace(self, index: int) -> Trace:
        """One of its traces."""
        return make_trace(
            self.seed(index),
            shape=self.shape,
            num_iterations=self.num_iterations,
            slowdown_percent=self.slowdown_percent,
            scenario=self.scenario,
            noise_sigma=self.noise_percent / 100,
        )


def grid(shapes: list[str], traces: int) -> list[tuple[Cell, int]]:
    """Every cell and how many traces it wants: as many healthy ones as slow ones in all."""
    wanted: list[tuple[Cell, int]] = []
    for shape in shapes:
        wanted += [(Cell(shape=shape, slowdown_percent=slow), traces) for slow in SLOWDOWNS]
        wanted.append((Cell(shape=shape, slowdown_percent=0.0), traces * len(SLOWDOWNS)))
    if "4x2x2" in shapes:
        others = (Scenario.TWO_VICTIMS, Scenario.TEMPORARY, Scenario.DRIFT)
        wanted += [(Cell(shape="4x2x2", slowdown_percent=10.0, scenario=each), traces) for each in others]
        wanted += [(Cell(shape="4x2x2", slowdown_percent=25.0, scenario=Scenario.TWO_VICTIMS), traces)]
        wanted += [(Cell(shape="4x2x2", slowdown_percent=slow, noise_percent=2.0), traces) for slow in (5.0, 10.0)]
        wanted.append((Cell(shape="4x2x2", slowdown_percent=0.0, noise_percent=2.0), 2 * traces))
    return wanted


def wants_baselines(cell: Cell, index: int) -> bool:
    """True where the published detectors read this trace too; the longest runs of the largest shapes are ours alone."""
    return index < (200 if cell.shape == next(iter(SHAPES)) else BASELINE_TRACES)
