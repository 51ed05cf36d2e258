"""Greyhound / FALCON (ATC'25): change points on iteration time, a 10 % check, then validation of the whole job.

Deviations: iteration times are known instead of recovered from NCCL call ids; change points come from online
Bayesian detection instead of the batch library Rbeast; validation is the simulator's probe (a GEMM on every device)
and accuses devices slower than 1.1 x the median, the paper's figure.
"""

from dataclasses import dataclass

from benchmarks.detection.change_points import BayesianChangePoints
from benchmarks.detection.finding import Finding
from benchmarks.detection.traces import Trace
from benchmarks.detection.validation import Validation


@dataclass(frozen=True, slots=True)
class Greyhound:
    """Iterations between change points at least ``gap``; means on both sides must differ by ``min_change``."""

    gap: int = 10
    min_change: float = 0.10
    suspect_ratio: float = 1.1
    name: str = "Greyhound"

    def findings(self, trace: Trace) -> list[Finding]:
        """All validations: accusing if a device is slow, else a false alarm that paused the job."""
        walls = trace.times.wall.max(axis=1)
        points = BayesianChangePoints()
        validation, last_change = Validation(trace, self.suspect_ratio), 0
        found: list[Finding] = []
        for iteration, wall in enumerate(walls):
            since = points.update(float(wall))
            if since is None or iteration - since - last_change <= self.gap:
                continue
            change = iteration - since + 1
            left, right = walls[last_change:change], walls[change : iteration + 1]
            difference = abs(left.mean() - right.mean()) / max(left.mean(), right.mean())
            last_change = change
            if difference <= self.min_change:
                continue
            found += validation.findings(iteration)
        return found
