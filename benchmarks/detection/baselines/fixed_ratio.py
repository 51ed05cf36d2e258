"""A fixed ratio to the median: what most dashboards alert on."""

from dataclasses import dataclass

import numpy as np

from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.traces.traces import Trace


@dataclass(frozen=True, slots=True)
class FixedRatio:
    """Accuses a rank whose compute time exceeds ``ratio`` times the median of all ranks in ``patience`` iterations.

    No model of the workload: replicas that drew longer documents look slow.
    """

    ratio: float = 1.1
    patience: int = 3
    name: str = "fixed ratio 1.1"

    def findings(self, trace: Trace) -> list[Finding]:
        """All alarms; a rank is accused again only after it was below the ratio."""
        compute = trace.times.forward + trace.times.backward
        relative = compute / np.median(compute, axis=1, keepdims=True)
        streak = np.zeros(compute.shape[1], dtype=int)
        found: list[Finding] = []
        for iteration, row in enumerate(relative):
            streak = np.where(row > self.ratio, streak + 1, 0)
            found.extend(
                Finding(iteration=iteration, ranks=(trace.times.ranks[column],), throughput=float(1.0 / row[column]))
                for column in np.nonzero(streak == self.patience)[0]
            )
        return found
