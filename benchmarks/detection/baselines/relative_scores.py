"""Relative and individual scores over report windows, as NVRx's straggler detection gives them.

Source: NVIDIA Resiliency Extension, documentation of its straggler detection. Deviations: section times are our
compute seconds, because there are no CUPTI kernel times; the report interval is a parameter.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.traces.traces import Trace


@dataclass(frozen=True, slots=True)
class RelativeScores:
    """Every ``interval`` iterations: best rank's median over own median, and own best past median over own median.

    A score below ``threshold`` accuses the rank.
    """

    threshold: float = 0.7
    interval: int = 20
    name: str = "relative scores (NVRx-like)"

    def findings(self, trace: Trace) -> list[Finding]:
        """All alarms; a rank is accused once until its score recovers."""
        compute = trace.times.forward + trace.times.backward
        best_own = np.full(compute.shape[1], np.inf)
        accused = np.zeros(compute.shape[1], dtype=bool)
        found: list[Finding] = []
        for stop in range(self.interval, len(compute) + 1, self.interval):
            medians = np.median(compute[stop - self.interval : stop], axis=0)
            best_own = np.minimum(best_own, medians)
            scores = np.minimum(medians.min() / medians, best_own / medians)
            low = scores < self.threshold
            found.extend(
                Finding(iteration=stop - 1, ranks=(trace.times.ranks[column],), throughput=float(scores[column]))
                for column in np.nonzero(low & ~accused)[0]
            )
            accused = low
        return found
