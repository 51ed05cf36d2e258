"""Greyhound / FALCON (ATC'25): change points on iteration time, a 10 % check, then validation of the whole job.

A change that fails the check is looked at once more when as many iterations as must lie between two changes have come
after it: the published code runs its batch detection again over the whole series, so a change is judged by all that
followed. Deviations: iteration times are known instead of recovered from NCCL call ids; change points come from online
Bayesian detection instead of the batch library Rbeast; validation is the simulator's probe (a GEMM on every device)
and accuses devices slower than 1.1 x the median, the paper's figure.
"""

from dataclasses import dataclass

from benchmarks.detection.baselines.change_points import BayesianChangePoints
from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.baselines.validation import Validation
from benchmarks.detection.traces.traces import Trace


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
        validation, last_change, again = Validation(trace, self.suspect_ratio), 0, -1
        found: list[Finding] = []
        for iteration, wall in enumerate(walls):
            since = points.update(float(wall))
            change = again if since is None else iteration - since + 1
            is_second = since is None
            if change < 0 or change - 1 - last_change <= self.gap or (is_second and iteration < change + self.gap):
                continue
            left, right = walls[last_change:change], walls[change : iteration + 1]
            difference = abs(left.mean() - right.mean()) / max(left.mean(), right.mean())
            again = -1 if is_second or difference > self.min_change else change
            if difference > self.min_change:
                last_change = change
                found += validation.findings(iteration)
        return found
